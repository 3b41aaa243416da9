#include "tessera/comm/point_to_point_queue.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::comm {

struct PointToPointQueue::Item final : WorkState {
  using Time = Observer::Time;

  Item(std::shared_ptr<Core> owner, Collective call, Attachments with);

  void wait() override;
  bool done() const override;

  // Its line: one per peer and direction.
  std::size_t line() const {
    const Collective& call = message->call;
    return 2 * static_cast<std::size_t>(call.peer) + (call.op == Op::send);
  }

  const std::shared_ptr<Core> core;
  const std::unique_ptr<PointToPointTransport::Message> message;
  Attachments attachments;
  Time began{};        // when it came to the head of its line
  bool ended = false;  // set under the lock, for those who wait
  std::exception_ptr error;
};

struct PointToPointQueue::Core {
  Core(std::shared_ptr<PointToPointTransport> how, int ranks)
      : transport(std::move(how)), lines(2 * static_cast<std::size_t>(ranks)) {}

  const std::shared_ptr<PointToPointTransport> transport;

  std::mutex mutex;
  std::condition_variable submitted;                     // the progress thread waits here
  std::condition_variable advanced;                      // and those who wait for a Work here
  std::vector<std::deque<std::shared_ptr<Item>>> lines;  // only the first of a line moves
  std::size_t waiting = 0;                               // items in all lines
  bool driving = false;    // the right to move items: exactly one thread has it
  std::thread::id driver;  // that one; see [Note: own thread] in queue.cpp
  bool stopping = false;
  std::thread progress;  // started by the first message that does not end at once

  bool advance(Item& item);
  bool round(std::unique_lock<std::mutex>& lock);
  void take_over() {
    driving = true;
    driver = std::this_thread::get_id();
  }
  void drive(std::unique_lock<std::mutex>& lock, const Item* until);
  void progress_loop();
};

PointToPointQueue::Item::Item(std::shared_ptr<Core> owner, Collective call, Attachments with)
    : core(std::move(owner)),
      message(core->transport->make_message(std::move(call))),
      attachments(std::move(with)) {}

bool PointToPointQueue::Core::advance(Item& item) {
  PointToPointTransport::Message& message = *item.message;
  try {
    if (item.began == Item::Time{}) {
      message.since = item.began = std::chrono::steady_clock::now();
    }
    if (item.attachments.before) std::exchange(item.attachments.before, nullptr)();
    const bool moved = transport->move(message);
    if (moved) message.since = std::chrono::steady_clock::now();
    if (message.finished && item.attachments.after) item.attachments.after();
    if (message.finished && item.attachments.ran) {
      item.attachments.ran(item.began, std::chrono::steady_clock::now());
    }
    return moved;
  } catch (...) {
    transport->on_error();
    item.error = std::current_exception();
    message.finished = true;
    return true;
  }
}

// Moves the first item of every line once. Called, and returns, with the lock held.
bool PointToPointQueue::Core::round(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Item>> first;
  for (const auto& line : lines) {
    if (!line.empty()) first.push_back(line.front());
  }
  lock.unlock();
  bool moved = false;
  for (const auto& item : first) moved = advance(*item) || moved;
  for (const auto& item : first) {
    if (item->message->finished) item->attachments = {};
  }
  lock.lock();
  for (const auto& item : first) {
    if (!item->message->finished) continue;
    item->ended = true;
    lines[item->line()].pop_front();
    --waiting;
  }
  if (moved) advanced.notify_all();
  return moved;
}

// Moves items until `until` has ended, or, if it is null, until there are none. The lock is held on
// entry and on return; nobody else drives.
void PointToPointQueue::Core::drive(std::unique_lock<std::mutex>& lock, const Item* until) {
  take_over();
  while (until != nullptr ? !until->ended : waiting > 0) {
    const std::uint64_t seen = transport->events();
    if (round(lock)) continue;
    lock.unlock();
    transport->wait(seen);
    lock.lock();
  }
  driving = false;
  if (stopping || waiting > 0) submitted.notify_one();
  advanced.notify_all();
}

void PointToPointQueue::Core::progress_loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    submitted.wait(lock, [this] { return !driving && (stopping || waiting > 0); });
    if (waiting == 0) return;
    drive(lock, nullptr);
  }
}

void PointToPointQueue::Item::wait() {
  std::unique_lock lock(core->mutex);
  while (!ended) {
    if (!core->driving) {
      core->drive(lock, this);
    } else {
      core->advanced.wait(lock);
    }
  }
  if (error) std::rethrow_exception(error);
}

bool PointToPointQueue::Item::done() const {
  std::lock_guard lock(core->mutex);
  return ended;
}

PointToPointQueue::PointToPointQueue(std::shared_ptr<PointToPointTransport> transport, int ranks)
    : core_(std::make_shared<Core>(std::move(transport), ranks)) {}

PointToPointQueue::~PointToPointQueue() {
  if (std::uncaught_exceptions() > 0) core_->transport->abandon();
  std::unique_lock lock(core_->mutex);
  if (core_->driving && core_->driver == std::this_thread::get_id()) {
    core_->stopping = true;
    if (core_->progress.joinable()) core_->progress.detach();
    return;
  }
  while (core_->driving || core_->waiting > 0) {
    if (core_->driving) {
      core_->advanced.wait(lock);
    } else {
      core_->drive(lock, nullptr);
    }
  }
  core_->stopping = true;
  core_->submitted.notify_all();
  lock.unlock();
  if (core_->progress.joinable()) core_->progress.join();
}

Work PointToPointQueue::submit(Collective call, Attachments attachments) {
  const std::shared_ptr<Core> core = core_;  // *this may go in round()
  auto item = std::make_shared<Item>(core, std::move(call), std::move(attachments));
  std::unique_lock lock(core->mutex);
  core->lines[item->line()].push_back(item);
  ++core->waiting;
  if (core->driving) {
    core->transport->notify();  // whoever drives may be asleep
    return Work(std::move(item));
  }
  core->take_over();
  core->round(lock);
  core->driving = false;
  core->advanced.notify_all();
  if (core->waiting > 0 && !core->progress.joinable()) {
    core->progress = std::thread([core] { core->progress_loop(); });
    if (core->stopping) core->progress.detach();
  }
  if (core->stopping || core->waiting > 0) core->submitted.notify_one();
  return Work(std::move(item));
}

}  // namespace tessera::comm
