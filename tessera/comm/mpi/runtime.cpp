#include "tessera/comm/mpi/runtime.h"

#include <utility>

#include "tessera/comm/mpi/progress.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {

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

// MPI exists once per process, so this is the one place that must remember it: everybody shares the
// runtime that is alive.
std::shared_ptr<Runtime> Runtime::start() {
  static std::mutex mutex;
  static std::weak_ptr<Runtime> alive;
  std::lock_guard lock(mutex);
  auto runtime = alive.lock();
  if (!runtime) {
    runtime = std::shared_ptr<Runtime>(new Runtime());
    alive = runtime;
  }
  return runtime;
}

Runtime::Runtime() : progress_(std::make_unique<MpiProgress>()) {
  progress_->thread = std::thread([progress = progress_.get()] { progress->run(); });
  {
    std::unique_lock lock(progress_->mutex);
    progress_->changed.wait(lock, [this] { return progress_->started; });
  }
  if (progress_->refusal) {
    progress_->thread.join();
    std::rethrow_exception(progress_->refusal);
  }
  rank_ = progress_->rank;
  size_ = progress_->size;
  max_tag_ = progress_->max_tag;
}

Runtime::~Runtime() {
  {
    std::lock_guard lock(progress_->mutex);
    progress_->stopping = true;
    progress_->clean = std::uncaught_exceptions() == 0;
  }
  progress_->woken.notify_all();
  progress_->thread.join();
}

TransferPtr Runtime::hand_over(TransferPtr transfer) {
  {
    std::lock_guard lock(progress_->mutex);
    progress_->submitted.push_back(transfer);
  }
  progress_->woken.notify_all();
  return transfer;
}

TransferPtr Runtime::send(const void* data, std::size_t bytes, int to, int tag,
                          std::shared_ptr<EventCount> events, std::shared_ptr<void> keep) {
  auto transfer =
      std::make_shared<Transfer>(Transfer::Kind::send, const_cast<void*>(data), bytes, to, tag);
  transfer->events = std::move(events);
  transfer->keep = std::move(keep);
  return hand_over(std::move(transfer));
}

TransferPtr Runtime::receive(void* data, std::size_t bytes, int from, int tag,
                             std::shared_ptr<EventCount> events, std::shared_ptr<void> keep) {
  auto transfer = std::make_shared<Transfer>(Transfer::Kind::receive, data, bytes, from, tag);
  transfer->events = std::move(events);
  transfer->keep = std::move(keep);
  return hand_over(std::move(transfer));
}

std::uint64_t Runtime::sent_bytes() const noexcept { return progress_->sent.load(); }

void Runtime::watch_peers(const std::shared_ptr<Peers>& peers) {
  std::lock_guard lock(progress_->mutex);
  if (progress_->peers.expired()) progress_->peers = peers;
}

void Runtime::abandon() noexcept {
  std::unique_lock lock(progress_->mutex);
  progress_->broken.store(true);
  progress_->woken.notify_all();
  progress_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return progress_->halted; });
}

bool Runtime::broken() const noexcept { return progress_->broken.load(); }

int Runtime::next_group_number() const noexcept { return progress_->next_number.load(); }

bool Runtime::claim_group_number(int number) noexcept {
  int next = progress_->next_number.load();
  while (next <= number) {
    if (progress_->next_number.compare_exchange_weak(next, number + 1)) return true;
  }
  return false;
}

}  // namespace tessera::comm::mpi
