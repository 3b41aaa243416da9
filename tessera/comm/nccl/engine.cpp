// Orders on their way to the GPU: submission, the lanes' threads, the end.

#include "tessera/comm/nccl/engine.h"

#include <utility>

#include "tessera/comm/nccl/engine_state.h"
#include "tessera/comm/nccl/enqueue.h"
#include "tessera/comm/signal.h"
#include "tessera/core/errors.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

namespace {

// A little spinning before a sleep: a thread that sleeps comes back microseconds late, twice in
// every call (the lane's thread to the order, the caller to its being issued).
template <typename Condition>
void spin_until(const Condition& condition) {
  const auto end = Clock::now() + 30us;
  while (!condition() && Clock::now() < end) {
    for (int i = 0; i < 16; ++i) relax();
  }
}

}  // namespace

Engine::Item::Item(std::shared_ptr<State> owner, Order what)
    : state(std::move(owner)),
      order(std::move(what)),
      ready(state->setting.device.type()),
      finished(state->setting.device.type()) {}

void Engine::Item::wait() {
  spin_until([this] { return settled.load(std::memory_order_acquire); });
  {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [this] { return issued || ended; });
    if (error) std::rethrow_exception(error);
    if (ended && !captured) return;
  }
  finished.block(state->guard.getStream(state->setting.device));
}

bool Engine::Item::done() const {
  std::lock_guard lock(state->mutex);
  return ended || (issued && finished.query());
}

// The right to call NCCL. Once the group has failed nobody gets it, so communicators can be
// aborted.
void Engine::State::enter(Lane& lane, const Order* doing) {
  std::lock_guard lock(mutex);
  if (failure) std::rethrow_exception(failure);
  lane.inside = Clock::now();
  lane.doing = doing;
  wake_watch();
}

void Engine::State::leave(Lane& lane) {
  std::lock_guard lock(mutex);
  lane.inside.reset();
  changed.notify_all();
}

void Engine::State::issue(Lane& lane, Item& next) {
  const Order& order = next.order;
  if (order.prepare) order.prepare();
  enter(lane, &order);
  try {
    next.ready.block(lane.stream);
    enqueue({api, lane.comm, lane.stream, lane.rank, lane.ranks, setting.deterministic}, order.call,
            *setting.meter);
    next.finished.record(lane.stream);
  } catch (const std::exception& error) {
    leave(lane);
    broke(describe(&order), error);
  }
  leave(lane);
}

void Engine::open(Lane& lane, const UniqueId& id) {
  State& state = lane.state;
  state.enter(lane, nullptr);
  Comm comm = nullptr;
  const Result result = state.api.comm_init_rank(&comm, lane.ranks, id, lane.rank);
  if (result == Result::success) lane.comm = comm;
  state.leave(lane);
  try {
    state.api.check(result, "ncclCommInitRank");
  } catch (const std::exception& error) {
    state.broke(state.describe(nullptr), error);
  }
}

void Engine::State::run_lane(Lane& lane) {
  guard.setDevice(setting.device);
  guard.exchangeStream(lane.stream);
  std::unique_lock lock(mutex);
  for (;;) {
    if (lane.pending.empty() && !stopping) {
      const std::uint32_t seen = lane.arrivals.load(std::memory_order_relaxed);
      lock.unlock();
      spin_until([&] { return lane.arrivals.load(std::memory_order_relaxed) != seen; });
      lock.lock();
    }
    lane.submitted.wait(lock, [&] { return stopping || !lane.pending.empty(); });
    if (lane.pending.empty()) break;
    const std::shared_ptr<Item> next = lane.pending.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      issue(lane, *next);
    } catch (...) {
      error = std::current_exception();
    }
    Dropped dropped;
    next->order.prepare = nullptr;
    lock.lock();
    if (next->ended) continue;  // failed meanwhile, together with all that was pending
    lane.pending.pop_front();
    next->since = Clock::now();
    if (error || next->captured) {
      end(*next, error, dropped);
    } else {
      next->issued = true;
      next->settled.store(true, std::memory_order_release);
      lane.flying.push_back(next);
      wake_watch();
    }
    changed.notify_all();
    lock.unlock();
    dropped.clear();
    lock.lock();
  }
  const Comm comm = std::exchange(lane.comm, nullptr);
  // After a failure anywhere a peer may never come to the end of the communicator.
  const bool failed = failure != nullptr || setting.peers->failure().has_value();
  lock.unlock();
  if (comm != nullptr) failed ? api.comm_abort(comm) : api.comm_destroy(comm);
  lock.lock();
  lane.ended = true;
  changed.notify_all();
}

Engine::Engine(const Api& api, Setting setting)
    : state_(std::make_shared<State>(api, std::move(setting))) {}

Engine::~Engine() {
  State& state = *state_;
  const bool failing = std::uncaught_exceptions() > 0;
  if (failing) {
    state.fail(std::make_exception_ptr(
        Error(str("group ", state.setting.group, " was destroyed before its calls had ended"))));
  }
  State::Dropped dropped;
  std::unique_lock lock(state.mutex);
  while (!state.drained()) {
    try {
      state.reap(dropped);
    } catch (...) {  // the watching thread sees it too, and fails everything
    }
    state.changed.wait_for(lock, 1ms);
  }
  state.stopping = true;
  state.watching.notify_all();
  for (Lane& lane : state.lanes) lane.submitted.notify_all();
  const auto farewell = failing ? std::chrono::milliseconds(500) : 10s;
  // One that destroys us itself, for what an operation kept alive, is not waited for.
  const auto awaited = [self = std::this_thread::get_id()](const std::thread& thread, bool ended) {
    return !ended && thread.joinable() && thread.get_id() != self;
  };
  state.changed.wait_for(lock, farewell, [&] {
    bool all = !awaited(state.watch, state.watch_ended);
    for (const Lane& lane : state.lanes) all = all && !awaited(lane.thread, lane.ended);
    return all;
  });
  const auto release = [&](std::thread& thread, bool ended) {
    if (!thread.joinable()) return;
    if (ended) {
      lock.unlock();
      thread.join();
      lock.lock();
    } else {
      thread.detach();  // hangs in NCCL or CUDA; it owns what it uses
    }
  };
  release(state.watch, state.watch_ended);
  for (Lane& lane : state.lanes) release(lane.thread, lane.ended);
}

Engine::Lane& Engine::add_lane(int rank, int ranks) {
  std::lock_guard lock(state_->mutex);
  const auto& device = state_->setting.device;
  return state_->lanes.emplace_back(
      *state_, state_->guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true), rank, ranks);
}

Work Engine::submit(Lane& lane, Order order) {
  auto item = std::make_shared<Item>(state_, std::move(order));
  const c10::Stream current = state_->guard.getStream(state_->setting.device);
  item->captured = state_->api.capturing(current.native_handle());
  item->ready.record(current);
  State::Dropped dropped;
  {
    std::lock_guard lock(state_->mutex);
    if (state_->failure) std::rethrow_exception(state_->failure);
    if (!item->captured) state_->reap(dropped);
    lane.pending.push_back(item);
    lane.arrivals.fetch_add(1, std::memory_order_relaxed);
    if (!lane.thread.joinable()) {
      lane.thread = std::thread([state = state_, &lane] { state->run_lane(lane); });
    }
    if (!state_->watch.joinable()) {
      state_->watch = std::thread([state = state_] { state->run_watch(); });
    }
    lane.submitted.notify_one();
  }
  return Work(std::move(item));
}

}  // namespace tessera::comm::nccl
