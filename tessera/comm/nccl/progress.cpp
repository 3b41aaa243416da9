// Calls on their way to the GPU: submission, the channels' threads, the end.

#include "tessera/comm/nccl/progress.h"

#include <utility>

#include "tessera/comm/nccl/enqueue.h"
#include "tessera/comm/nccl/progress_state.h"
#include "tessera/comm/signal.h"
#include "tessera/core/errors.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

namespace {

// A little spinning before a sleep: a thread that sleeps comes back microseconds late, twice in
// every call (the channel's thread to the submission, the caller to its being issued).
template <typename Condition>
void spin_until(const Condition& condition) {
  const auto end = Clock::now() + 30us;
  while (!condition() && Clock::now() < end) {
    for (int i = 0; i < 16; ++i) relax();
  }
}

}  // namespace

NcclProgress::Item::Item(std::shared_ptr<State> owner, Submission what)
    : state(std::move(owner)),
      submission(std::move(what)),
      ready(state->context.device.type()),
      finished(state->context.device.type()) {}

void NcclProgress::Item::wait() {
  spin_until([this] { return settled.load(std::memory_order_acquire); });
  {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [this] { return issued || ended; });
    if (error) std::rethrow_exception(error);
    if (ended && !captured) return;
  }
  finished.block(state->guard.getStream(state->context.device));
}

bool NcclProgress::Item::done() const {
  std::lock_guard lock(state->mutex);
  return ended || (issued && finished.query());
}

// The right to call NCCL. Once the group has failed nobody gets it, so communicators can be
// aborted.
void NcclProgress::State::enter(Channel& channel, const Submission* doing) {
  std::lock_guard lock(mutex);
  if (failure) std::rethrow_exception(failure);
  channel.inside = Clock::now();
  channel.doing = doing;
  wake_watchdog();
}

void NcclProgress::State::leave(Channel& channel) {
  std::lock_guard lock(mutex);
  channel.inside.reset();
  changed.notify_all();
}

void NcclProgress::State::issue(Channel& channel, Item& next) {
  const Submission& submission = next.submission;
  if (submission.prepare) submission.prepare();
  enter(channel, &submission);
  try {
    next.ready.block(channel.stream);
    enqueue({api, channel.comm, channel.stream, channel.rank, channel.ranks, context.deterministic},
            submission.call, *context.meter);
    next.finished.record(channel.stream);
  } catch (const std::exception& error) {
    leave(channel);
    broke(describe(&submission), error);
  }
  leave(channel);
}

void NcclProgress::open(Channel& channel, const UniqueId& id) {
  State& state = channel.state;
  state.enter(channel, nullptr);
  Comm comm = nullptr;
  const Result result = state.api.comm_init_rank(&comm, channel.ranks, id, channel.rank);
  if (result == Result::success) channel.comm = comm;
  state.leave(channel);
  try {
    state.api.check(result, "ncclCommInitRank");
  } catch (const std::exception& error) {
    state.broke(state.describe(nullptr), error);
  }
}

void NcclProgress::State::run_channel(Channel& channel) {
  guard.setDevice(context.device);
  guard.exchangeStream(channel.stream);
  std::unique_lock lock(mutex);
  for (;;) {
    if (channel.pending.empty() && !stopping) {
      const std::uint32_t seen = channel.arrivals.load(std::memory_order_relaxed);
      lock.unlock();
      spin_until([&] { return channel.arrivals.load(std::memory_order_relaxed) != seen; });
      lock.lock();
    }
    channel.submitted.wait(lock, [&] { return stopping || !channel.pending.empty(); });
    if (channel.pending.empty()) break;
    const std::shared_ptr<Item> next = channel.pending.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      issue(channel, *next);
    } catch (...) {
      error = std::current_exception();
    }
    Dropped dropped;
    next->submission.prepare = nullptr;
    lock.lock();
    if (next->ended) continue;  // failed meanwhile, together with all that was pending
    channel.pending.pop_front();
    next->since = Clock::now();
    if (error || next->captured) {
      end(*next, error, dropped);
    } else {
      next->issued = true;
      next->settled.store(true, std::memory_order_release);
      channel.in_flight.push_back(next);
      wake_watchdog();
    }
    changed.notify_all();
    lock.unlock();
    dropped.clear();
    lock.lock();
  }
  const Comm comm = std::exchange(channel.comm, nullptr);
  // After a failure anywhere a peer may never come to the end of the communicator.
  const bool failed = failure != nullptr || context.peers->failure().has_value();
  lock.unlock();
  if (comm != nullptr) failed ? api.comm_abort(comm) : api.comm_destroy(comm);
  lock.lock();
  channel.ended = true;
  changed.notify_all();
}

NcclProgress::NcclProgress(const Api& api, GroupContext context)
    : state_(std::make_shared<State>(api, std::move(context))) {}

NcclProgress::~NcclProgress() {
  State& state = *state_;
  const bool failing = std::uncaught_exceptions() > 0;
  if (failing) {
    state.fail(std::make_exception_ptr(
        Error(str("group ", state.context.group, " was destroyed before its calls had ended"))));
  }
  State::Dropped dropped;
  std::unique_lock lock(state.mutex);
  while (!state.drained()) {
    try {
      state.reap(dropped);
    } catch (...) {  // the watchdog sees it too, and fails everything
    }
    state.changed.wait_for(lock, 1ms);
  }
  state.stopping = true;
  state.watchdog_woken.notify_all();
  for (Channel& channel : state.channels) channel.submitted.notify_all();
  const auto longest_wait = failing ? std::chrono::milliseconds(500) : 10s;
  // One that destroys us itself, for what an operation kept alive, is not waited for.
  const auto awaited = [self = std::this_thread::get_id()](const std::thread& thread, bool ended) {
    return !ended && thread.joinable() && thread.get_id() != self;
  };
  state.changed.wait_for(lock, longest_wait, [&] {
    bool all = !awaited(state.watchdog, state.watchdog_ended);
    for (const Channel& channel : state.channels)
      all = all && !awaited(channel.thread, channel.ended);
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
  release(state.watchdog, state.watchdog_ended);
  for (Channel& channel : state.channels) release(channel.thread, channel.ended);
}

NcclProgress::Channel& NcclProgress::add_channel(int rank, int ranks) {
  std::lock_guard lock(state_->mutex);
  const auto& device = state_->context.device;
  return state_->channels.emplace_back(
      *state_, state_->guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true), rank, ranks);
}

Work NcclProgress::submit(Channel& channel, Submission submission) {
  auto item = std::make_shared<Item>(state_, std::move(submission));
  const c10::Stream current = state_->guard.getStream(state_->context.device);
  item->captured = state_->api.capturing(current.native_handle());
  item->ready.record(current);
  State::Dropped dropped;
  {
    std::lock_guard lock(state_->mutex);
    if (state_->failure) std::rethrow_exception(state_->failure);
    if (!item->captured) state_->reap(dropped);
    channel.pending.push_back(item);
    channel.arrivals.fetch_add(1, std::memory_order_relaxed);
    if (!channel.thread.joinable()) {
      channel.thread = std::thread([state = state_, &channel] { state->run_channel(channel); });
    }
    if (!state_->watchdog.joinable()) {
      state_->watchdog = std::thread([state = state_] { state->run_watchdog(); });
    }
    channel.submitted.notify_one();
  }
  return Work(std::move(item));
}

}  // namespace tessera::comm::nccl
