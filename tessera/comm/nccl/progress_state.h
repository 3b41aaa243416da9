#pragma once

// The inside of NcclProgress, for its two sources.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "tessera/comm/nccl/progress.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {

using Clock = std::chrono::steady_clock;

struct NcclProgress::Item final : WorkState {
  Item(std::shared_ptr<State> owner, Submission what);
  void wait() override;
  bool done() const override;

  const std::shared_ptr<State> state;
  Submission submission;
  c10::Event ready, finished;
  bool captured = false;
  bool issued = false;  // it is on the GPU, and `finished` behind it
  bool ended = false;
  std::atomic<bool> settled{false};  // one of the two: for those who look without the lock
  Clock::time_point since;           // when it was issued
  std::exception_ptr error;
};

struct NcclProgress::Channel {
  Channel(State& of, c10::Stream on, int own, int all)
      : state(of), stream(on), rank(own), ranks(all) {}

  State& state;
  const c10::Stream stream;
  const int rank;
  const int ranks;
  Comm comm = nullptr;
  std::deque<std::shared_ptr<Item>> pending;
  std::deque<std::shared_ptr<Item>> in_flight;  // on the GPU
  std::optional<Clock::time_point> inside;      // since when its thread has been in NCCL
  const Submission* doing = nullptr;            // what for; null: to open the communicator
  std::condition_variable submitted;
  std::atomic<std::uint32_t> arrivals{0};  // how often something was submitted
  bool ended = false;
  std::thread thread;
};

// Everything behind one mutex. The threads own it too, so that one which hangs can be left behind.
struct NcclProgress::State : std::enable_shared_from_this<State> {
  State(const Api& functions, GroupContext what)
      : api(functions), context(std::move(what)), guard(context.device.type()) {}

  const Api& api;
  const GroupContext context;
  const c10::impl::VirtualGuardImpl guard;

  mutable std::mutex mutex;
  std::condition_variable changed;         // something was issued or ended
  std::condition_variable watchdog_woken;  // the watchdog sleeps here while the GPU is idle
  std::list<Channel> channels;
  std::exception_ptr failure;  // why the group is over
  bool stopping = false;
  bool watchdog_sleeps = false;
  bool watchdog_ended = false;
  std::optional<Clock::time_point> left_since;  // when the watchdog saw that one had left
  std::thread watchdog;

  std::string describe(const Submission* submission) const {
    if (submission == nullptr) return str("the start of NCCL in group ", context.group);
    return str("#", submission->number, " ", comm::describe(submission->call), " of group ",
               context.group);
  }
  int own_rank() const { return context.peers->rank(); }

  // What is dropped must be dropped without the lock: tensors run code of their own.
  using Dropped = std::vector<std::shared_ptr<void>>;
  void end(Item& which, std::exception_ptr error, Dropped& dropped) {
    which.ended = true;
    which.error = std::move(error);
    which.settled.store(true, std::memory_order_release);
    dropped.push_back(std::move(which.submission.keep));
  }

  // Marks what the GPU has finished. With the lock held.
  void reap(Dropped& dropped) {
    for (Channel& channel : channels) {
      while (!channel.in_flight.empty() && channel.in_flight.front()->finished.query()) {
        end(*channel.in_flight.front(), nullptr, dropped);
        channel.in_flight.pop_front();
      }
    }
    if (!dropped.empty()) changed.notify_all();
  }

  bool idle() const {
    for (const Channel& channel : channels) {
      if (!channel.in_flight.empty() || channel.inside) return false;
    }
    return true;
  }
  bool drained() const {
    for (const Channel& channel : channels) {
      if (!channel.in_flight.empty() || !channel.pending.empty()) return false;
    }
    return true;
  }

  void run_channel(Channel& channel);
  void issue(Channel& channel, Item& next);
  void enter(Channel& channel, const Submission* doing);
  void leave(Channel& channel);

  // The watchdog has something to look at. With the lock held.
  void wake_watchdog() {
    if (watchdog_sleeps) watchdog_woken.notify_one();
  }
  void run_watchdog();
  std::optional<Failure> look();
  std::optional<Failure> look_at_peers(const std::string& doing, bool left_counts) const;
  [[noreturn]] void broke(const std::string& doing, const std::exception& problem);
  std::exception_ptr retold(const Failure& failure) const;
  void fail(std::exception_ptr error);
};

}  // namespace tessera::comm::nccl
