#include "tessera/comm/mpi/runtime.h"

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/comm/mpi/wire.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kPartBytes = std::size_t{1} << 30;  // MPI counts in int
constexpr auto kGoodbyeTimeout = 5min;
constexpr auto kLastWords = 1200ms;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

void require(int code, const char* what) {
  if (code != MPI_SUCCESS) throw Error(str(what, " failed: ", error_text(code)));
}

// [Note: report first] Every rank hears of a failure at about the same time; the wait lets all of
// them say so before the first one's abort kills the rest.
void abort_at_exit(int status, void*) {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) return;
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastWords);
  MPI_Abort(MPI_COMM_WORLD, status != 0 ? status : 1);
}

}  // namespace

bool available() noexcept { return true; }
std::string why_not() { return ""; }
std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0, major = 0, minor = 0;
  MPI_Get_library_version(text, &length);
  MPI_Get_version(&major, &minor);
  std::string library(text, static_cast<std::size_t>(length));
  library = library.substr(0, library.find_first_of(",\n"));
  return str(library, " (MPI ", major, ".", minor, ")");
}

struct Runtime::Impl {
  std::mutex mutex;
  std::condition_variable woken;    // the thread waits here
  std::condition_variable changed;  // and others for it here
  std::vector<Ticket> inbox;
  std::weak_ptr<Peers> peers;
  bool started = false;
  bool halted = false;
  bool stopping = false;
  bool clean = true;  // no exception was on its way when the end came
  std::exception_ptr refusal;
  std::atomic<bool> broken{false};
  std::atomic<std::uint64_t> sent{0};
  std::atomic<int> next_number{0};
  std::thread thread;

  // The thread's own.
  MPI_Comm world = MPI_COMM_NULL;
  bool owner = false;  // MPI is ours to end
  int rank = 0, size = 1, max_tag = 0;
  std::vector<MPI_Request> requests;
  std::vector<Ticket> owners;  // owners[i] waits for requests[i]
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;

  void init();
  void run();
  void post(const Ticket& transfer);
  void completed(Transfer& transfer, const MPI_Status& status, int code);
  bool poll();
  void rest(Clock::duration idle);
  void end();
  bool goodbye(std::string& reason);
  std::optional<std::string> trouble(Clock::time_point since) const;
};

void Runtime::Impl::init() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
      throw UsageError(
          "the program has called MPI_Init itself, with a thread level below MPI_THREAD_MULTIPLE. "
          "Leave MPI to Tessera, or call MPI_Init_thread with MPI_THREAD_MULTIPLE");
    }
  } else {
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
    owner = true;
    if (level < MPI_THREAD_FUNNELED) {
      throw Error(
          "this MPI library supports no threads besides the main one; install one that "
          "gives MPI_THREAD_FUNNELED");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  // A communicator of our own: the program's messages and ours cannot meet.
  require(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(world, MPI_TAG_UB, &limit, &found);
  max_tag = found != 0 ? std::min(*limit, 1 << 30) : 32767;
}

void Runtime::Impl::post(const Ticket& transfer) {
  Transfer& t = *transfer;
  const std::size_t parts = std::max<std::size_t>(1, (t.bytes + kPartBytes - 1) / kPartBytes);
  t.open = parts;
  for (std::size_t i = 0; i < parts; ++i) {
    auto* at = static_cast<std::byte*>(t.data) + i * kPartBytes;
    const int count = static_cast<int>(std::min(kPartBytes, t.bytes - i * kPartBytes));
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = t.kind == Transfer::Kind::send
                         ? MPI_Isend(at, count, MPI_BYTE, t.rank, t.tag, world, &request)
                         : MPI_Irecv(at, count, MPI_BYTE, t.rank, t.tag, world, &request);
    if (code != MPI_SUCCESS) {
      completed(t, MPI_Status{}, code);
      continue;
    }
    requests.push_back(request);
    owners.push_back(transfer);
  }
  if (t.kind == Transfer::Kind::send) sent.fetch_add(t.bytes, std::memory_order_relaxed);
}

void Runtime::Impl::completed(Transfer& transfer, const MPI_Status& status, int code) {
  if (code != MPI_SUCCESS) {
    transfer.set_error(error_text(code));
  } else if (transfer.kind == Transfer::Kind::receive) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    transfer.add_received(static_cast<std::size_t>(count));
  }
  if (--transfer.open == 0) transfer.finish();
}

// Lets MPI work. Returns whether anything was completed.
bool Runtime::Impl::poll() {
  if (requests.empty()) {
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kGoodbyeTag, world, &flag, MPI_STATUS_IGNORE);
    return false;
  }
  indices.resize(requests.size());
  statuses.resize(requests.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                indices.data(), statuses.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    for (const Ticket& transfer : owners) {
      transfer->open = 1;
      completed(*transfer, MPI_Status{}, code);
    }
    requests.clear();
    owners.clear();
    return true;
  }
  if (count == MPI_UNDEFINED || count == 0) return false;
  for (int i = 0; i < count; ++i) {
    const MPI_Status& status = statuses[static_cast<std::size_t>(i)];
    completed(*owners[static_cast<std::size_t>(indices[static_cast<std::size_t>(i)])], status,
              code == MPI_SUCCESS ? MPI_SUCCESS : status.MPI_ERROR);
  }
  std::sort(indices.begin(), indices.begin() + count, std::greater<>());
  for (int i = 0; i < count; ++i) {
    const auto gone = indices[static_cast<std::size_t>(i)];
    requests.erase(requests.begin() + gone);
    owners.erase(owners.begin() + gone);
  }
  return true;
}

// [Note: one thread]
void Runtime::Impl::rest(Clock::duration idle) {
  Clock::duration nap = requests.empty() ? Clock::duration(10ms) : Clock::duration(1ms);
  if (idle < 100us) {
    sched_yield();
    return;
  }
  if (idle < 2ms) {
    nap = 50us;
  } else if (idle < 50ms) {
    nap = 200us;
  }
  std::unique_lock lock(mutex);
  woken.wait_for(lock, nap, [this] { return !inbox.empty() || stopping || broken.load(); });
}

void Runtime::Impl::run() {
  try {
    init();
  } catch (...) {
    std::lock_guard lock(mutex);
    refusal = std::current_exception();
    started = true;
    changed.notify_all();
    return;
  }
  {
    std::lock_guard lock(mutex);
    started = true;
    changed.notify_all();
  }
  auto last_move = Clock::now();
  std::vector<Ticket> fresh;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      if (broken.load()) {
        halted = true;
        changed.notify_all();
        woken.wait(lock, [this] { return stopping; });
      }
      if (stopping && inbox.empty()) break;
      std::swap(fresh, inbox);
    }
    for (const Ticket& transfer : fresh) post(transfer);
    const bool moved = poll() || !fresh.empty();
    fresh.clear();
    const auto now = Clock::now();
    if (moved) {
      last_move = now;
    } else {
      rest(now - last_move);
    }
  }
  end();
}

// Why waiting for the others at the end makes no sense, if it does not.
std::optional<std::string> Runtime::Impl::trouble(Clock::time_point since) const {
  if (const auto control = peers.lock()) {
    if (const auto failure = control->failure()) return failure->text;
    for (int r = 0; r < size; ++r) {
      if (control->state(r) == PeerState::dead) return str("rank ", r, " died");
    }
  }
  if (Clock::now() - since > kGoodbyeTimeout) return "not all ranks came in time";
  return std::nullopt;
}

// A barrier that a dead rank cannot block: in round k every rank hears from the one 2^k before it.
bool Runtime::Impl::goodbye(std::string& reason) {
  const auto since = Clock::now();
  for (int step = 1; step < size; step *= 2) {
    char out = 0, in = 0;
    MPI_Request pair[2];
    MPI_Irecv(&in, 1, MPI_BYTE, (rank - step + size) % size, kGoodbyeTag, world, &pair[0]);
    MPI_Isend(&out, 1, MPI_BYTE, (rank + step) % size, kGoodbyeTag, world, &pair[1]);
    int both = 0;
    for (auto pause = 10us;; pause = std::min<std::chrono::microseconds>(pause * 2, 5ms)) {
      MPI_Testall(2, pair, &both, MPI_STATUSES_IGNORE);
      if (both != 0) break;
      if (const auto what = trouble(since)) {
        reason = *what;
        return false;
      }
      std::this_thread::sleep_for(pause);
    }
  }
  return true;
}

void Runtime::Impl::end() {
  std::string reason;
  bool good = clean && !broken.load();
  if (good && !goodbye(reason)) {
    good = false;
    Logger{rank, size}.error("MPI cannot be shut down: ", reason, "; the job will be aborted");
  }
  if (good) {
    // Nobody waits for what is left, receives of a group that was given up.
    for (MPI_Request& request : requests) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    MPI_Comm_free(&world);
    if (owner) MPI_Finalize();
  } else if (owner) {
    on_exit(abort_at_exit, nullptr);
  }
}

std::shared_ptr<Runtime> Runtime::start() { return std::shared_ptr<Runtime>(new Runtime()); }

Runtime::Runtime() : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  {
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait(lock, [this] { return impl_->started; });
  }
  if (impl_->refusal) {
    impl_->thread.join();
    std::rethrow_exception(impl_->refusal);
  }
  rank_ = impl_->rank;
  size_ = impl_->size;
  max_tag_ = impl_->max_tag;
}

Runtime::~Runtime() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->clean = std::uncaught_exceptions() == 0;
  }
  impl_->woken.notify_all();
  impl_->thread.join();
}

Ticket Runtime::hand_over(Ticket transfer) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->inbox.push_back(transfer);
  }
  impl_->woken.notify_all();
  return transfer;
}

Ticket Runtime::send(const void* data, std::size_t bytes, int to, int tag,
                     std::shared_ptr<Bell> bell, std::shared_ptr<void> keep) {
  auto transfer =
      std::make_shared<Transfer>(Transfer::Kind::send, const_cast<void*>(data), bytes, to, tag);
  transfer->bell = std::move(bell);
  transfer->keep = std::move(keep);
  return hand_over(std::move(transfer));
}

Ticket Runtime::receive(void* data, std::size_t bytes, int from, int tag,
                        std::shared_ptr<Bell> bell, std::shared_ptr<void> keep) {
  auto transfer = std::make_shared<Transfer>(Transfer::Kind::receive, data, bytes, from, tag);
  transfer->bell = std::move(bell);
  transfer->keep = std::move(keep);
  return hand_over(std::move(transfer));
}

std::uint64_t Runtime::sent_bytes() const noexcept { return impl_->sent.load(); }

void Runtime::attend(const std::shared_ptr<Peers>& peers) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->peers.expired()) impl_->peers = peers;
}

void Runtime::break_off() noexcept {
  std::unique_lock lock(impl_->mutex);
  impl_->broken.store(true);
  impl_->woken.notify_all();
  impl_->changed.wait_for(lock, 1s, [this] { return impl_->halted; });
}

bool Runtime::broken() const noexcept { return impl_->broken.load(); }

int Runtime::next_group_number() const noexcept { return impl_->next_number.load(); }

void Runtime::use_group_number(int number) noexcept {
  int next = impl_->next_number.load();
  while (next <= number && !impl_->next_number.compare_exchange_weak(next, number + 1)) {
  }
}

}  // namespace tessera::comm::mpi
