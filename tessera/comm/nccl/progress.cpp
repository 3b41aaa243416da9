// Submission, launch and end of calls on the GPU.

#include "tessera/comm/nccl/progress.h"

#include <c10/core/StreamGuard.h>

#include <utility>

#include "tessera/comm/capture.h"
#include "tessera/comm/nccl/enqueue.h"
#include "tessera/comm/nccl/progress_state.h"
#include "tessera/comm/signal.h"
#include "tessera/core/errors.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

namespace {

// Spins briefly before a sleep, because waking up from a sleep takes microseconds.
template <typename Condition>
void spin_until(const Condition& condition) {
  const auto end = Clock::now() + 30us;
  while (!condition() && Clock::now() < end) {
    for (int i = 0; i < 16; ++i) relax();
  }
}

}  // namespace

NcclProgress::Item::Item(std::shared_ptr<State> owner, Submission what, bool into_graph)
    : state(std::move(owner)),
      submission(std::move(what)),
      captured(into_graph),
      events(state->events->take(into_graph)) {}

void NcclProgress::Item::wait() {
  spin_until([this] { return issued_or_ended.load(std::memory_order_acquire); });
  {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [this] { return issued || ended; });
    if (error) std::rethrow_exception(error);
    if (ended && !captured) return;
  }
  events->finished.block(state->guard.getStream(state->context.device));
}

bool NcclProgress::Item::done() const {
  std::lock_guard lock(state->mutex);
  return ended || (issued && events->finished.query());
}

// Called before a call of NCCL. Throws if the group has failed, so that its communicators can be
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

LaunchTurn::Lock NcclProgress::State::take_turn(Channel& channel, const Submission& submission) {
  const auto go_on = [this] { return !failed.load(); };
  LaunchTurn& turn = context.order->turn;
  LaunchTurn::Lock lock;
  try {
    lock = submission.connects
               ? turn.take_in_order(*context.peers, channel.turns, context.timeout, go_on)
               : turn.take(go_on);
  } catch (const PeerError& error) {
    // Fails the whole group, because a late note for this turn would be mistaken for the next
    // one's.
    const PeerError failure(str(describe(&submission), " over nccl: ", error.what()), error.rank());
    fail(std::make_exception_ptr(failure));
    throw failure;
  }
  if (!lock) {
    const std::lock_guard held(mutex);
    std::rethrow_exception(failure);
  }
  return lock;
}

void NcclProgress::State::issue(Channel& channel, Item& next) {
  const Submission& submission = next.submission;
  const CallEvents& events_of = *next.events;
  const LaunchTurn::Lock turn = take_turn(channel, submission);
  enter(channel, &submission);
  try {
    const c10::StreamGuard on(channel.stream);
    events_of.ready.block(channel.stream);
    if (!next.captured) next.events->begun.record(channel.stream);
    enqueue({api, channel.comm, context.device, channel.stream.native_handle(), channel.rank,
             channel.ranks, context.deterministic},
            submission.call, *context.meter);
    next.events->finished.record(channel.stream);
  } catch (const std::exception& error) {
    leave(channel);
    broke(describe(&submission), error);
  }
  leave(channel);
}

// Waits until the ranks have agreed on a new call.
void NcclProgress::State::meet(Channel& channel, Item& next) {
  Submission& submission = next.submission;
  if (!submission.prepare) return;
  if (channel.log) channel.log->expect(submission.number, submission.record);
  try {
    submission.prepare();
  } catch (...) {
    if (channel.log) channel.log->expect_nothing();
    throw;
  }
  if (channel.log) channel.log->expect_nothing();
}

// Launches the oldest pending item of the channel.
void NcclProgress::State::launch(Channel& channel, const std::shared_ptr<Item>& next) {
  std::exception_ptr error;
  try {
    if (channel.use == Use::collectives) meet(channel, *next);
    const bool compared = channel.log && !next->captured && next->submission.number > 0;
    if (compared) channel.log->add(next->submission.number, next->submission.record);
    issue(channel, *next);
  } catch (...) {
    error = std::current_exception();
  }
  Dropped dropped;
  next->submission.prepare = nullptr;
  {
    std::lock_guard lock(mutex);
    if (next->ended) return;  // failed meanwhile, with all other pending items
    std::erase(channel.pending, next);
    next->since = Clock::now();
    if (error || next->captured) {
      end(*next, error, dropped);
    } else {
      next->issued = true;
      next->issued_or_ended.store(true, std::memory_order_release);
      channel.in_flight.push_back(next);
      wake_watchdog();
    }
    changed.notify_all();
  }
  dropped.let_go();
}

void NcclProgress::open(Channel& channel, const UniqueId& id) {
  State& state = channel.state;
  state.guard.setDevice(state.context.device);
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

// NCCL requires that no call of the parent is in flight.
void NcclProgress::open_by_split(Channel& channel, Channel& parent, int color, int key) {
  State& state = channel.state;
  state.guard.setDevice(state.context.device);
  state.guard.synchronizeStream(parent.stream);
  parent.state.enter(parent, nullptr);
  state.enter(channel, nullptr);
  Comm comm = nullptr;
  const Result result = state.api.comm_split(parent.comm, color, key, &comm, nullptr);
  if (result == Result::success) channel.comm = comm;
  state.leave(channel);
  parent.state.leave(parent);
  try {
    state.api.check(result, "ncclCommSplit");
  } catch (const std::exception& error) {
    state.broke(state.describe(nullptr), error);
  }
}

// Launches the messages that must be agreed on, and those behind them. Returns when there are none;
// submit() then starts a new thread.
void NcclProgress::State::run_channel(Channel& channel) {
  guard.setDevice(context.device);
  ignore_captures_of_other_threads();
  std::unique_lock lock(mutex);
  while (!channel.unmet.empty()) {
    const std::shared_ptr<Item> next = channel.unmet.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      meet(channel, *next);
    } catch (...) {
      error = std::current_exception();
    }
    Dropped dropped;
    if (error) {
      lock.lock();
      if (!next->ended) {
        std::erase(channel.pending, next);
        end(*next, error, dropped);
        changed.notify_all();
      }
      lock.unlock();
      dropped.let_go();
    } else {
      launch(channel, next);
    }
    lock.lock();
    channel.unmet.pop_front();  // only now, so that later messages do not overtake it
  }
  channel.thread_ended = true;
  changed.notify_all();
}

void NcclProgress::State::close_channels() {
  guard.setDevice(context.device);
  std::vector<Comm> comms;
  bool failing = false;
  {
    std::lock_guard lock(mutex);
    for (Channel& channel : channels) comms.push_back(std::exchange(channel.comm, nullptr));
    // After a failure a peer may never destroy the communicator, which ncclCommDestroy waits for.
    failing = failure != nullptr || context.peers->failure().has_value();
  }
  for (const Comm comm : comms) {
    if (comm != nullptr) failing ? api.comm_abort(comm) : api.comm_destroy(comm);
  }
  std::lock_guard lock(mutex);
  closed = true;
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
    } catch (...) {  // the watchdog detects it too, and fails all calls
    }
    state.changed.wait_for(lock, 1ms);
  }
  state.stopping = true;
  state.watchdog_woken.notify_all();
  std::thread closer([all = state_] { all->close_channels(); });
  const auto longest_wait = failing ? std::chrono::milliseconds(500) : 10s;
  // Do not wait for the current thread: the release of an operation's objects may run this.
  const auto awaited = [self = std::this_thread::get_id()](const std::thread& thread, bool ended) {
    return !ended && thread.joinable() && thread.get_id() != self;
  };
  state.changed.wait_for(lock, longest_wait, [&] {
    bool all = !awaited(state.watchdog, state.watchdog_ended) && state.closed;
    for (const Channel& channel : state.channels) {
      all = all && !awaited(channel.thread, channel.thread_ended);
    }
    return all;
  });
  const auto release = [&](std::thread& thread, bool ended) {
    if (!thread.joinable()) return;
    if (ended) {
      lock.unlock();
      thread.join();
      lock.lock();
    } else {
      thread.detach();  // hangs in NCCL or CUDA; it owns all it uses
    }
  };
  release(state.watchdog, state.watchdog_ended);
  release(closer, state.closed);
  for (Channel& channel : state.channels) release(channel.thread, channel.thread_ended);
  lock.unlock();
  dropped.let_go();
}

NcclProgress::Channel& NcclProgress::add_channel(int rank, int ranks, Use use,
                                                 LaunchTurn::Call turns) {
  std::lock_guard lock(state_->mutex);
  const auto& device = state_->context.device;
  return state_->channels.emplace_back(
      *state_, state_->guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true), rank, ranks,
      use, std::move(turns));
}

void NcclProgress::set_log(Channel& channel, std::shared_ptr<CallLog> log) {
  std::lock_guard lock(channel.state.mutex);
  channel.log = std::move(log);
}

Work NcclProgress::submit(Channel& channel, Submission submission) {
  State& state = *state_;
  const c10::Stream current = state.guard.getStream(state.context.device);
  const bool captured = capturing(current);
  auto item = std::make_shared<Item>(state_, std::move(submission), captured);
  item->events->ready.record(current);
  // Tessera's own sums are tensor operations. They must not run on a caller's thread, which may
  // record operations (autograd) or attribute memory to categories.
  const bool own_thread =
      uses_tensors(item->submission.call, channel.rank, channel.ranks, state.context.deterministic);
  const bool collective = channel.use == Use::collectives;
  const bool new_call = item->submission.prepare != nullptr;
  // A captured call uses the channel's stream, so no other call may be enqueued there meanwhile.
  if (captured && !state.context.order->wait_until_empty([&] { return !state.failed.load(); })) {
    std::lock_guard lock(state.mutex);
    std::rethrow_exception(state.failure);
  }
  State::Dropped dropped;
  bool unmet = false;
  {
    std::lock_guard lock(state.mutex);
    if (state.failure) std::rethrow_exception(state.failure);
    if (!captured) {
      state.reap(dropped);
      if (item->submission.ran) {
        if (!state.clock) state.clock.emplace(state.context.device);
        item->anchor = state.clock->anchor();
      }
    }
    channel.pending.push_back(item);
    unmet = !collective && (new_call || own_thread || !channel.unmet.empty());
    if (unmet) {
      channel.unmet.push_back(item);
      if (channel.thread.joinable() && channel.thread_ended) channel.thread.join();
      if (!channel.thread.joinable()) {
        channel.thread_ended = false;
        channel.thread = std::thread([all = state_, &channel] { all->run_channel(channel); });
      }
    }
    if (!state.watchdog.joinable()) {
      state.watchdog = std::thread([all = state_] { all->run_watchdog(); });
    }
    if (new_call) state.wake_watchdog();
  }
  dropped.let_go();
  const auto go = [all = state_, &channel, item] { all->launch(channel, item); };
  if (collective) {
    const bool queued = new_call || own_thread;
    state.context.order->put(go, queued ? LaunchOrder::How::on_thread : LaunchOrder::How::now);
  } else if (!unmet) {
    go();
  }
  return Work(std::move(item));
}

std::shared_ptr<void> NcclProgress::register_buffer(Channel& channel, void* data,
                                                    std::size_t bytes) {
  const std::shared_ptr<State> state = state_;
  if (state->api.comm_register == nullptr || state->api.comm_deregister == nullptr) return nullptr;
  if (!state->context.order->wait_until_empty([&] { return !state->failed.load(); }))
    return nullptr;
  void* registered = nullptr;
  state->enter(channel, nullptr);
  const Result result = state->api.comm_register(channel.comm, data, bytes, &registered);
  state->leave(channel);
  if (result != Result::success || registered == nullptr) return nullptr;
  return {registered, [state, &channel](void* handle) {
            std::unique_lock lock(state->mutex);
            state->changed.wait(lock, [&] { return state->failure || !channel.inside; });
            // A destroyed communicator needs no deregistration.
            if (channel.comm != nullptr) state->api.comm_deregister(channel.comm, handle);
          }};
}

}  // namespace tessera::comm::nccl
