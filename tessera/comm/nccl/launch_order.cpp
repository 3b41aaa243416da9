#include "tessera/comm/nccl/launch_order.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/comm/capture.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

// Also owned by the thread, so that a thread that hangs in NCCL can be detached.
struct LaunchOrder::Core {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool running = false;  // a task of the queue is running
  bool stopping = false;
  bool ended = false;
  std::thread thread;

  bool empty() const { return queue.empty() && !running; }

  void run() {
    ignore_captures_of_other_threads();
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) break;
      {
        const std::function<void()> task = std::move(queue.front());
        queue.pop_front();
        running = true;
        lock.unlock();
        task();
      }  // destroys the task's captures before the lock is taken again
      lock.lock();
      running = false;
      changed.notify_all();
    }
    ended = true;
    changed.notify_all();
  }
};

LaunchOrder::LaunchOrder() : core_(std::make_shared<Core>()) {}

LaunchOrder::~LaunchOrder() {
  std::unique_lock lock(core_->mutex);
  core_->stopping = true;
  core_->changed.notify_all();
  if (!core_->thread.joinable()) return;
  // The last task may hold the last handle of a group, and so of this object.
  const bool self = core_->thread.get_id() == std::this_thread::get_id();
  if (!self) core_->changed.wait_for(lock, 10s, [this] { return core_->ended; });
  std::thread thread = std::move(core_->thread);
  const bool ended = core_->ended;
  lock.unlock();
  ended ? thread.join() : thread.detach();
}

void LaunchOrder::put(std::function<void()> task, How how) {
  const std::shared_ptr<Core> core = core_;  // the task may destroy *this
  {
    std::lock_guard lock(core->mutex);
    if (how == How::on_thread || !core->empty()) {
      if (!core->thread.joinable()) core->thread = std::thread([core] { core->run(); });
      core->queue.push_back(std::move(task));
      core->changed.notify_all();
      return;
    }
  }
  task();
}

bool LaunchOrder::wait_until_empty(const std::function<bool()>& go_on) {
  std::unique_lock lock(core_->mutex);
  while (!core_->empty()) {
    core_->changed.wait_for(lock, 100ms);
    if (!go_on()) return false;
  }
  return true;
}

}  // namespace tessera::comm::nccl
