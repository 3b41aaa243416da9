#pragma once

// Implementation of NcclProgress, for its source files.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/comm/call_log.h"
#include "tessera/comm/nccl/device_clock.h"
#include "tessera/comm/nccl/progress.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {

using Clock = std::chrono::steady_clock;

// Events of a call. Reused by later calls.
struct CallEvents {
  explicit CallEvents(c10::DeviceType type)
      : ready(type),
        begun(type, c10::EventFlag::BACKEND_DEFAULT),
        finished(type, c10::EventFlag::BACKEND_DEFAULT) {}
  c10::Event ready;            // on the caller's stream: the input is complete
  c10::Event begun, finished;  // on the channel's stream
};

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(c10::DeviceType type) : type_(type) {}
  // Returns events that return to the pool when released. Events of a graph are not reused, because
  // the graph waits for them.
  std::shared_ptr<CallEvents> take(bool for_graph) {
    if (for_graph) return std::make_shared<CallEvents>(type_);
    std::unique_ptr<CallEvents> found;
    {
      const std::lock_guard lock(mutex_);
      if (!spare_.empty()) {
        found = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    if (!found) found = std::make_unique<CallEvents>(type_);
    return {found.release(), [pool = shared_from_this()](CallEvents* events) {
              std::unique_ptr<CallEvents> back(events);
              const std::lock_guard lock(pool->mutex_);
              pool->spare_.push_back(std::move(back));
            }};
  }

 private:
  const c10::DeviceType type_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CallEvents>> spare_;
};

struct NcclProgress::Item final : WorkState {
  Item(std::shared_ptr<State> owner, Submission what, bool into_graph);
  void wait() override;
  bool done() const override;

  const std::shared_ptr<State> state;
  Submission submission;
  const bool captured;
  const std::shared_ptr<CallEvents> events;
  std::shared_ptr<const DeviceClock::Anchor> anchor;  // set if submission.ran is set
  bool issued = false;  // it is on the GPU, and `finished` is recorded after it
  bool ended = false;
  std::atomic<bool> issued_or_ended{false};  // readable without the lock
  Clock::time_point since;                   // time at which it was issued
  std::exception_ptr error;
};

struct NcclProgress::Channel {
  Channel(State& of, c10::Stream on, int own, int all, Use what, LaunchTurn::Call whose)
      : state(of), stream(on), rank(own), ranks(all), use(what), turns(std::move(whose)) {}

  State& state;
  const c10::Stream stream;
  const int rank;
  const int ranks;
  const Use use;
  const LaunchTurn::Call turns;
  std::shared_ptr<CallLog> log;  // null if calls are not compared
  Comm comm = nullptr;
  std::deque<std::shared_ptr<Item>> pending;    // not on the GPU yet
  std::deque<std::shared_ptr<Item>> in_flight;  // on the GPU
  std::optional<Clock::time_point> inside;      // time at which a thread called NCCL for it
  const Submission* doing = nullptr;            // for which call; null: to open the communicator
  // Messages whose two ranks must agree on them first, and all messages after these. The channel's
  // own thread launches them; collectives use the thread of the LaunchOrder.
  std::deque<std::shared_ptr<Item>> unmet;
  bool thread_ended = false;
  std::thread thread;
};

// State of a NcclProgress, guarded by one mutex. Threads share its ownership, so that one that
// hangs can be detached.
struct NcclProgress::State : std::enable_shared_from_this<State> {
  State(const Api& functions, GroupContext what)
      : api(functions),
        context(std::move(what)),
        guard(context.device.type()),
        events(std::make_shared<EventPool>(context.device.type())) {}

  const Api& api;
  const GroupContext context;
  const c10::impl::VirtualGuardImpl guard;
  const std::shared_ptr<EventPool> events;

  mutable std::mutex mutex;
  std::condition_variable changed;         // something was issued or ended
  std::condition_variable watchdog_woken;  // for the watchdog, while the GPU is idle
  std::list<Channel> channels;
  std::optional<DeviceClock> clock;  // created by the first call with Submission::ran
  std::exception_ptr failure;        // error that ended the group; null while it works
  std::atomic<bool> failed{false};   // failure != null, readable without the lock
  bool stopping = false;
  bool watchdog_sleeps = false;
  bool watchdog_ended = false;
  bool closed = false;                            // the communicators are destroyed
  std::optional<Clock::time_point> left_since;    // when the watchdog noticed that a rank left
  std::optional<Clock::time_point> failed_since;  // when it noticed that the job failed
  std::thread watchdog;

  std::string describe(const Submission* submission) const {
    if (submission == nullptr) return str("the start of NCCL in group ", context.group);
    return str("#", submission->number, " ", comm::describe(submission->call), " of group ",
               context.group);
  }
  int own_rank() const { return context.peers->rank(); }

  // Objects to release and callbacks to run without the lock, because the destructors of tensors
  // may run arbitrary code.
  struct Dropped {
    std::vector<std::shared_ptr<void>> kept;
    std::vector<std::function<void()>> callbacks;
    bool empty() const { return kept.empty(); }
    void let_go() {
      for (const auto& callback : callbacks) callback();
      callbacks.clear();
      kept.clear();
    }
  };
  void end(Item& which, std::exception_ptr error, Dropped& dropped) {
    which.ended = true;
    which.error = std::move(error);
    which.issued_or_ended.store(true, std::memory_order_release);
    dropped.kept.push_back(std::move(which.submission.keep));
  }

  // Measures the time of a call on the GPU, including waits for the other ranks.
  void measure(Item& which, Dropped& dropped) {
    const CallEvents& events_of = *which.events;
    const auto time = std::chrono::nanoseconds(
        static_cast<std::int64_t>(events_of.begun.elapsedTime(events_of.finished) * 1e6));
    context.meter->busy(time);
    if (!which.submission.ran || !which.anchor) return;
    const Clock::time_point begin = which.anchor->when(events_of.begun);
    dropped.callbacks.push_back(
        [ran = std::move(which.submission.ran), begin, time] { ran(begin, begin + time); });
  }

  // Ends the calls that the GPU has finished. Requires the lock.
  void reap(Dropped& dropped) {
    for (Channel& channel : channels) {
      while (!channel.in_flight.empty() && channel.in_flight.front()->events->finished.query()) {
        measure(*channel.in_flight.front(), dropped);
        end(*channel.in_flight.front(), nullptr, dropped);
        channel.in_flight.pop_front();
      }
    }
    if (!dropped.empty()) changed.notify_all();
  }

  // Returns whether the watchdog has nothing to check. Pending calls count: they may wait for a
  // call of another group, and must fail when the job fails.
  bool idle() const {
    return std::all_of(channels.begin(), channels.end(), [](const Channel& channel) {
      return channel.in_flight.empty() && channel.pending.empty() && !channel.inside;
    });
  }
  bool drained() const {
    return std::all_of(channels.begin(), channels.end(), [](const Channel& channel) {
      return channel.in_flight.empty() && channel.pending.empty();
    });
  }

  void run_channel(Channel& channel);
  void meet(Channel& channel, Item& next);
  void launch(Channel& channel, const std::shared_ptr<Item>& next);
  void issue(Channel& channel, Item& next);
  LaunchTurn::Lock take_turn(Channel& channel, const Submission& submission);
  void enter(Channel& channel, const Submission* doing);
  void leave(Channel& channel);
  void close_channels();

  // Wakes the watchdog if it sleeps. Requires the lock.
  void wake_watchdog() {
    if (watchdog_sleeps) watchdog_woken.notify_one();
  }
  void run_watchdog();
  std::optional<Failure> look();
  std::optional<Failure> look_at_peers(const std::string& doing, bool left_counts) const;
  std::optional<Failure> compare_logs();
  [[noreturn]] void broke(const std::string& doing, const std::exception& problem);
  std::exception_ptr retold(const Failure& failure) const;
  void fail(std::exception_ptr error);
};

}  // namespace tessera::comm::nccl
