#pragma once

// The inside of Engine, for its two sources.

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

#include "tessera/comm/nccl/engine.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {

using Clock = std::chrono::steady_clock;

struct Engine::Item final : WorkState {
  Item(std::shared_ptr<State> owner, Order what);
  void wait() override;
  bool done() const override;

  const std::shared_ptr<State> state;
  Order order;
  c10::Event ready, finished;
  bool captured = false;
  bool issued = false;  // it is on the GPU, and `finished` behind it
  bool ended = false;
  std::atomic<bool> settled{false};  // one of the two: for those who look without the lock
  Clock::time_point since;           // when it was issued
  std::exception_ptr error;
};

struct Engine::Lane {
  Lane(State& of, c10::Stream on, int own, int all)
      : state(of), stream(on), rank(own), ranks(all) {}

  State& state;
  const c10::Stream stream;
  const int rank;
  const int ranks;
  Comm comm = nullptr;
  std::deque<std::shared_ptr<Item>> pending;
  std::deque<std::shared_ptr<Item>> flying;  // on the GPU
  std::optional<Clock::time_point> inside;   // since when its thread has been in NCCL
  const Order* doing = nullptr;              // what for; null: to open the communicator
  std::condition_variable submitted;
  std::atomic<std::uint32_t> arrivals{0};  // how often something was submitted
  bool ended = false;
  std::thread thread;
};

// Everything behind one mutex. The threads own it too, so that one which hangs can be left behind.
struct Engine::State : std::enable_shared_from_this<State> {
  State(const Api& functions, Setting what)
      : api(functions), setting(std::move(what)), guard(setting.device.type()) {}

  const Api& api;
  const Setting setting;
  const c10::impl::VirtualGuardImpl guard;

  mutable std::mutex mutex;
  std::condition_variable changed;   // something was issued or ended
  std::condition_variable watching;  // the watching thread sleeps here while the GPU is idle
  std::list<Lane> lanes;
  std::exception_ptr failure;  // why the group is over
  bool stopping = false;
  bool watch_sleeps = false;
  bool watch_ended = false;
  std::optional<Clock::time_point> left_since;  // when the watching thread saw that one had left
  std::thread watch;

  std::string describe(const Order* order) const {
    if (order == nullptr) return str("the start of NCCL in group ", setting.group);
    return str("#", order->number, " ", comm::describe(order->call), " of group ", setting.group);
  }
  int own_rank() const { return setting.peers->rank(); }

  // What is dropped must be dropped without the lock: tensors run code of their own.
  using Dropped = std::vector<std::shared_ptr<void>>;
  void end(Item& which, std::exception_ptr error, Dropped& dropped) {
    which.ended = true;
    which.error = std::move(error);
    which.settled.store(true, std::memory_order_release);
    dropped.push_back(std::move(which.order.keep));
  }

  // Marks what the GPU has finished. With the lock held.
  void reap(Dropped& dropped) {
    for (Lane& lane : lanes) {
      while (!lane.flying.empty() && lane.flying.front()->finished.query()) {
        end(*lane.flying.front(), nullptr, dropped);
        lane.flying.pop_front();
      }
    }
    if (!dropped.empty()) changed.notify_all();
  }

  bool idle() const {
    for (const Lane& lane : lanes) {
      if (!lane.flying.empty() || lane.inside) return false;
    }
    return true;
  }
  bool drained() const {
    for (const Lane& lane : lanes) {
      if (!lane.flying.empty() || !lane.pending.empty()) return false;
    }
    return true;
  }

  void run_lane(Lane& lane);
  void issue(Lane& lane, Item& next);
  void enter(Lane& lane, const Order* doing);
  void leave(Lane& lane);

  // The watching thread has something to look at. With the lock held.
  void wake_watch() {
    if (watch_sleeps) watching.notify_one();
  }
  void run_watch();
  std::optional<Failure> look();
  std::optional<Failure> look_at_peers(const std::string& doing, bool left_counts) const;
  [[noreturn]] void broke(const std::string& doing, const std::exception& problem);
  std::exception_ptr retold(const Failure& failure) const;
  void fail(std::exception_ptr error);
};

}  // namespace tessera::comm::nccl
