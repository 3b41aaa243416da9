#include "tessera/comm/queue.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

struct Queue::Item final : WorkState {
  Item(std::shared_ptr<Core> owner, Collective what, Attachments with)
      : core(std::move(owner)), call(std::move(what)), attachments(std::move(with)) {}

  void wait() override;
  bool done() const override;

  void begin() {
    if (attachments.ran && began == Observer::Time{}) began = std::chrono::steady_clock::now();
  }
  void tell() {
    if (attachments.ran) attachments.ran(began, std::chrono::steady_clock::now());
  }

  const std::shared_ptr<Core> core;
  Collective call;
  Attachments attachments;
  Observer::Time began{};  // if somebody wants to know
  bool posted = false;
  bool ended = false;
  std::exception_ptr error;
};

struct Queue::Core {
  std::shared_ptr<Transport> transport;
  std::string name;

  std::mutex mutex;
  std::condition_variable submitted;  // the progress thread waits here
  std::condition_variable advanced;   // and those who wait for a Work here
  std::deque<std::shared_ptr<Item>> items;
  bool busy = false;
  bool stopping = false;
  std::thread progress;  // started by the first collective that needs it

  void run(Item& item) {
    try {
      if (item.attachments.before) item.attachments.before();
      item.begin();
      if (!std::exchange(item.posted, true)) transport->post(item.call);
      transport->finish(item.call, /*may_give_up=*/false);
      if (item.attachments.after) item.attachments.after();
      item.tell();
    } catch (...) {
      item.error = std::current_exception();
    }
    item.attachments = {};
  }

  // Takes the transport and runs the first item. Called with the lock held, not busy, not empty.
  void run_front(std::unique_lock<std::mutex>& lock) {
    busy = true;
    const std::shared_ptr<Item> item = items.front();
    lock.unlock();
    run(*item);
    lock.lock();
    items.pop_front();
    item->ended = true;
    busy = false;
    advanced.notify_all();
    if (!items.empty()) submitted.notify_one();
  }

  void progress_loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      submitted.wait(lock, [this] { return stopping || (!busy && !items.empty()); });
      if (stopping) return;
      run_front(lock);
    }
  }

  void wake_progress() {
    if (!progress.joinable()) progress = std::thread([this] { progress_loop(); });
    submitted.notify_one();
  }
};

void Queue::Item::wait() {
  std::unique_lock lock(core->mutex);
  while (!ended) {
    if (!core->busy && !core->items.empty()) {
      core->run_front(lock);
    } else {
      core->advanced.wait(lock);
    }
  }
  if (error) std::rethrow_exception(error);
}

bool Queue::Item::done() const {
  std::lock_guard lock(core->mutex);
  return ended;
}

Queue::Queue(std::shared_ptr<Transport> transport, std::string name)
    : core_(std::make_shared<Core>()) {
  core_->transport = std::move(transport);
  core_->name = std::move(name);
}

Queue::~Queue() {
  const bool failing = std::uncaught_exceptions() > 0;
  if (failing) core_->transport->abandon();
  std::unique_lock lock(core_->mutex);
  while (core_->busy || !core_->items.empty()) {
    if (core_->busy) {
      core_->advanced.wait(lock);
    } else {
      core_->run_front(lock);
    }
  }
  core_->stopping = true;
  core_->submitted.notify_all();
  lock.unlock();
  if (core_->progress.joinable()) core_->progress.join();
}

Work Queue::submit(Collective call, Attachments attachments) {
  auto item = std::make_shared<Item>(core_, std::move(call), std::move(attachments));
  std::unique_lock lock(core_->mutex);
  const bool plain = !item->attachments.before && !item->attachments.after;
  if (plain && !core_->busy && core_->items.empty() && core_->transport->quick(item->call)) {
    core_->busy = true;
    lock.unlock();
    bool ended = true;
    try {
      item->posted = true;
      item->begin();
      core_->transport->post(item->call);
      ended = core_->transport->finish(item->call, /*may_give_up=*/true);
      if (ended) item->tell();
    } catch (...) {
      item->error = std::current_exception();
    }
    if (ended) item->attachments = {};
    lock.lock();
    core_->busy = false;
    item->ended = ended;
    // Others may have queued behind us meanwhile; ours still comes first.
    if (!ended) core_->items.push_front(item);
    if (!core_->items.empty()) core_->wake_progress();
    core_->advanced.notify_all();
  } else {
    core_->items.push_back(item);
    core_->wake_progress();
  }
  return Work(std::move(item));
}

}  // namespace tessera::comm
