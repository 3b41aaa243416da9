#include "tessera/comm/mpi/progress.h"

#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
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
constexpr auto kLookEvery = 10ms;                         // at the state of the job
constexpr auto kReportTime = 1200ms;

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
  std::this_thread::sleep_for(kReportTime);
  MPI_Abort(MPI_COMM_WORLD, status != 0 ? status : 1);
}

}  // namespace

void MpiProgress::init() {
  int initialized = 0, ended = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&ended);
  if (ended != 0) {
    throw UsageError(
        "MPI has been shut down in this process and cannot be started again. Keep the first group "
        "alive for as long as the process needs one");
  }
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

void MpiProgress::post(const TransferPtr& transfer) {
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

void MpiProgress::completed(Transfer& transfer, const MPI_Status& status, int code) {
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
bool MpiProgress::poll() {
  if (requests.empty()) {
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kShutdownTag, world, &flag, MPI_STATUS_IGNORE);
    return false;
  }
  indices.resize(requests.size());
  statuses.resize(requests.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                indices.data(), statuses.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    for (const TransferPtr& transfer : owners) {
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
void MpiProgress::rest(Clock::duration idle) {
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
  woken.wait_for(lock, nap, [this] { return !submitted.empty() || stopping || broken.load(); });
}

void MpiProgress::run() {
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
  auto last_move = Clock::now(), last_look = last_move;
  std::vector<TransferPtr> fresh;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      if (broken.load()) {
        halted = true;
        changed.notify_all();
        woken.wait(lock, [this] { return stopping; });
      }
      if (stopping && submitted.empty()) break;
      std::swap(fresh, submitted);
    }
    for (const TransferPtr& transfer : fresh) post(transfer);
    const bool moved = poll() || !fresh.empty();
    fresh.clear();
    const auto now = Clock::now();
    if (moved) {
      last_move = now;
    } else {
      rest(now - last_move);
    }
    if (now - last_look < kLookEvery) continue;
    last_look = now;
    if (job_failed()) broken.store(true);
  }
  end();
}

// Whether a rank has reported that the job is over; it need not have been over MPI.
bool MpiProgress::job_failed() {
  std::unique_lock lock(mutex);
  const auto control = peers.lock();
  lock.unlock();
  return control && control->failure().has_value();
}

// The reason not to wait for the others at the end, if there is one. That they are slow is none:
// they may have work to do that does not concern this rank.
std::optional<std::string> MpiProgress::trouble() const {
  const auto control = peers.lock();
  if (!control) return std::nullopt;
  if (const auto failure = control->failure()) return failure->text;
  for (int r = 0; r < size; ++r) {
    if (control->state(r) == PeerState::dead) return str("rank ", r, " died");
  }
  return std::nullopt;
}

// A barrier that a dead rank cannot block: in round k every rank hears from the one 2^k before it.
bool MpiProgress::shutdown_barrier(std::string& reason) {
  for (int step = 1; step < size; step *= 2) {
    char out = 0, in = 0;
    MPI_Request pair[2];
    MPI_Irecv(&in, 1, MPI_BYTE, (rank - step + size) % size, kShutdownTag, world, &pair[0]);
    MPI_Isend(&out, 1, MPI_BYTE, (rank + step) % size, kShutdownTag, world, &pair[1]);
    int both = 0;
    for (auto pause = 10us;; pause = std::min<std::chrono::microseconds>(pause * 2, 5ms)) {
      MPI_Testall(2, pair, &both, MPI_STATUSES_IGNORE);
      if (both != 0) break;
      if (const auto what = trouble()) {
        reason = *what;
        return false;
      }
      std::this_thread::sleep_for(pause);
    }
  }
  return true;
}

void MpiProgress::end() {
  std::string reason;
  bool good = clean && !broken.load();
  if (good && !shutdown_barrier(reason)) {
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

}  // namespace tessera::comm::mpi
