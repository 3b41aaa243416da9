#pragma once

// The inside of NcclProgress, for its sources.

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

// The events of a call, made once and used again by others.
struct CallEvents {
  explicit CallEvents(c10::DeviceType type)
      : ready(type),
        begun(type, c10::EventFlag::BACKEND_DEFAULT),
        finished(type, c10::EventFlag::BACKEND_DEFAULT) {}
  c10::Event ready;            // on the caller's stream: its input is there
  c10::Event begun, finished;  // on the channel's
};

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(c10::DeviceType type) : type_(type) {}
  // Comes back by itself. One for a graph is not used again: what waits for it is in the graph.
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
  std::shared_ptr<const DeviceClock::Anchor> anchor;  // if somebody wants to know when it ran
  bool issued = false;                                // it is on the GPU, and `finished` behind it
  bool ended = false;
  std::atomic<bool> settled{false};  // one of the two: for those who look without the lock
  Clock::time_point since;           // when it was issued
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
  std::shared_ptr<CallLog> log;  // null where there is nobody to compare with
  Comm comm = nullptr;
  std::deque<std::shared_ptr<Item>> pending;    // not on the GPU yet
  std::deque<std::shared_ptr<Item>> in_flight;  // on the GPU
  std::optional<Clock::time_point> inside;      // since when a thread has been in NCCL for it
  const Submission* doing = nullptr;            // what for; null: to open the communicator
  // Messages that must be agreed on first, and those behind them. They have a thread of the
  // channel's own while there are any; collectives have that of the LaunchOrder.
  std::deque<std::shared_ptr<Item>> unmet;
  bool thread_ended = false;
  std::thread thread;
};

// Everything behind one mutex. The threads own it too, so that one which hangs can be left behind.
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
  std::condition_variable watchdog_woken;  // the watchdog sleeps here while the GPU is idle
  std::list<Channel> channels;
  std::optional<DeviceClock> clock;  // from the first call that somebody wants to see
  std::exception_ptr failure;        // why the group is over
  std::atomic<bool> failed{false};   // the same, for those without the lock
  bool stopping = false;
  bool watchdog_sleeps = false;
  bool watchdog_ended = false;
  bool closed = false;                            // the communicators
  std::optional<Clock::time_point> left_since;    // when the watchdog saw that one had left
  std::optional<Clock::time_point> failed_since;  // and that the job is over
  std::thread watchdog;

  std::string describe(const Submission* submission) const {
    if (submission == nullptr) return str("the start of NCCL in group ", context.group);
    return str("#", submission->number, " ", comm::describe(submission->call), " of group ",
               context.group);
  }
  int own_rank() const { return context.peers->rank(); }

  // What is dropped, or told, must be so without the lock: tensors run code of their own.
  struct Dropped {
    std::vector<std::shared_ptr<void>> kept;
    std::vector<std::function<void()>> told;
    bool empty() const { return kept.empty(); }
    void let_go() {
      for (const auto& tell : told) tell();
      told.clear();
      kept.clear();
    }
  };
  void end(Item& which, std::exception_ptr error, Dropped& dropped) {
    which.ended = true;
    which.error = std::move(error);
    which.settled.store(true, std::memory_order_release);
    dropped.kept.push_back(std::move(which.submission.keep));
  }

  // How long it was on the GPU: that is its time in NCCL, waiting for the other ranks included.
  void measure(Item& which, Dropped& dropped) {
    const CallEvents& events_of = *which.events;
    const auto time = std::chrono::nanoseconds(
        static_cast<std::int64_t>(events_of.begun.elapsedTime(events_of.finished) * 1e6));
    context.meter->busy(time);
    if (!which.submission.ran || !which.anchor) return;
    const Clock::time_point begin = which.anchor->when(events_of.begun);
    dropped.told.push_back(
        [ran = std::move(which.submission.ran), begin, time] { ran(begin, begin + time); });
  }

  // Marks what the GPU has finished. With the lock held.
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

  // Nothing that the watchdog has to look at. What is pending counts: it may wait behind something
  // of another group, and must hear when the job is over.
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

  // The watchdog has something to look at. With the lock held.
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
