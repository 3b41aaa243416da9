#include "tessera/comm/point_to_point_queue.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::comm {

struct PointToPointMessage::Core {
  using Message = PointToPointMessage;

  Core(std::shared_ptr<PointToPointTransport> how, int ranks)
      : transport(std::move(how)), lines(2 * static_cast<std::size_t>(ranks)) {}

  const std::shared_ptr<PointToPointTransport> transport;

  std::mutex mutex;
  std::condition_variable submitted;                        // for the progress thread
  std::condition_variable advanced;                         // for threads that wait for a Work
  std::vector<std::deque<std::shared_ptr<Message>>> lines;  // only the first of a line moves
  std::size_t waiting = 0;                                  // messages in all lines
  bool driving = false;    // a thread is moving messages; only one may
  std::thread::id driver;  // that thread; see [Note: own thread] in queue.cpp
  bool stopping = false;
  std::thread progress;  // started by the first message that does not end immediately

  bool advance(Message& message);
  bool round(std::unique_lock<std::mutex>& lock);
  void take_over() {
    driving = true;
    driver = std::this_thread::get_id();
  }
  void drive(std::unique_lock<std::mutex>& lock, const Message* until);
  void progress_loop();
};

bool PointToPointMessage::Core::advance(Message& message) {
  try {
    if (message.began_ == Time{}) message.since = message.began_ = std::chrono::steady_clock::now();
    if (message.attachments_.before) std::exchange(message.attachments_.before, nullptr)();
    const bool moved = transport->move(message);
    if (moved) message.since = std::chrono::steady_clock::now();
    if (message.finished && message.attachments_.after) message.attachments_.after();
    if (message.finished && message.attachments_.ran) {
      message.attachments_.ran(message.began_, std::chrono::steady_clock::now());
    }
    return moved;
  } catch (...) {
    transport->on_error();
    message.error_ = std::current_exception();
    message.finished = true;
    return true;
  }
}

// Moves the first message of every line once. Returns whether any moved. The lock is held on entry
// and on return.
bool PointToPointMessage::Core::round(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Message>> first;
  for (const auto& line : lines) {
    if (!line.empty()) first.push_back(line.front());
  }
  lock.unlock();
  bool moved = false;
  for (const auto& message : first) moved = advance(*message) || moved;
  for (const auto& message : first) {
    if (message->finished) message->attachments_ = {};
  }
  lock.lock();
  for (const auto& message : first) {
    if (!message->finished) continue;
    message->ended_ = true;
    lines[message->line()].pop_front();
    --waiting;
  }
  if (moved) advanced.notify_all();
  return moved;
}

// Moves messages until `until` has ended or, if it is null, until there are none. The lock is held
// on entry and on return. Requires that no other thread drives.
void PointToPointMessage::Core::drive(std::unique_lock<std::mutex>& lock, const Message* until) {
  take_over();
  while (until != nullptr ? !until->ended_ : waiting > 0) {
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

void PointToPointMessage::Core::progress_loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    submitted.wait(lock, [this] { return !driving && (stopping || waiting > 0); });
    if (waiting == 0) return;
    drive(lock, nullptr);
  }
}

void PointToPointMessage::wait() {
  std::unique_lock lock(core_->mutex);
  while (!ended_) {
    if (!core_->driving) {
      core_->drive(lock, this);
    } else {
      core_->advanced.wait(lock);
    }
  }
  if (error_) std::rethrow_exception(error_);
}

bool PointToPointMessage::done() const {
  std::lock_guard lock(core_->mutex);
  return ended_;
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
  const std::shared_ptr<Core> core = core_;  // round() may destroy *this
  auto message = core->transport->make_message(std::move(call));
  message->core_ = core;
  message->attachments_ = std::move(attachments);
  std::unique_lock lock(core->mutex);
  core->lines[message->line()].push_back(message);
  ++core->waiting;
  if (core->driving) {
    core->transport->notify();  // the driving thread may be asleep
    return Work(std::move(message));
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
  return Work(std::move(message));
}

}  // namespace tessera::comm
