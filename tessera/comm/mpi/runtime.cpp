#include "tessera/comm/mpi/runtime.h"

#include <utility>

#include "tessera/comm/mpi/engine.h"
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

Runtime::Runtime() : engine_(std::make_unique<Engine>()) {
  engine_->thread = std::thread([engine = engine_.get()] { engine->run(); });
  {
    std::unique_lock lock(engine_->mutex);
    engine_->changed.wait(lock, [this] { return engine_->started; });
  }
  if (engine_->refusal) {
    engine_->thread.join();
    std::rethrow_exception(engine_->refusal);
  }
  rank_ = engine_->rank;
  size_ = engine_->size;
  max_tag_ = engine_->max_tag;
}

Runtime::~Runtime() {
  {
    std::lock_guard lock(engine_->mutex);
    engine_->stopping = true;
    engine_->clean = std::uncaught_exceptions() == 0;
  }
  engine_->woken.notify_all();
  engine_->thread.join();
}

Ticket Runtime::hand_over(Ticket transfer) {
  {
    std::lock_guard lock(engine_->mutex);
    engine_->inbox.push_back(transfer);
  }
  engine_->woken.notify_all();
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

std::uint64_t Runtime::sent_bytes() const noexcept { return engine_->sent.load(); }

void Runtime::attend(const std::shared_ptr<Peers>& peers) {
  std::lock_guard lock(engine_->mutex);
  if (engine_->peers.expired()) engine_->peers = peers;
}

void Runtime::break_off() noexcept {
  std::unique_lock lock(engine_->mutex);
  engine_->broken.store(true);
  engine_->woken.notify_all();
  engine_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return engine_->halted; });
}

bool Runtime::broken() const noexcept { return engine_->broken.load(); }

int Runtime::next_group_number() const noexcept { return engine_->next_number.load(); }

void Runtime::use_group_number(int number) noexcept {
  int next = engine_->next_number.load();
  while (next <= number && !engine_->next_number.compare_exchange_weak(next, number + 1)) {
  }
}

}  // namespace tessera::comm::mpi
