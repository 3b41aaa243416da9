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
  void report() {
    if (attachments.ran) attachments.ran(began, std::chrono::steady_clock::now());
  }

  const std::shared_ptr<Core> core;
  Collective call;
  Attachments attachments;
  Observer::Time began{};  // set only if attachments.ran is set
  bool posted = false;
  bool ended = false;
  std::exception_ptr error;
};

// [Note: own thread] The attachments of an item may hold the last handle of the group. Then the
// thread that ran the item destroys the queue inside run(), and it cannot wait for itself. It
// leaves the remaining items to the Core, which the progress thread and every Work keep alive; the
// progress thread runs them and ends.
struct Queue::Core {
  std::shared_ptr<Transport> transport;
  std::string name;

  std::mutex mutex;
  std::condition_variable submitted;  // for the progress thread
  std::condition_variable advanced;   // for threads that wait for a Work
  std::deque<std::shared_ptr<Item>> items;
  bool busy = false;
  std::thread::id runner;  // the thread that set `busy`
  bool stopping = false;
  std::thread progress;  // started by the first collective that needs it

  void run(Item& item) {
    try {
      if (item.attachments.before) item.attachments.before();
      item.begin();
      if (!std::exchange(item.posted, true)) transport->post(item.call);
      transport->finish(item.call, /*may_give_up=*/false);
      if (item.attachments.after) item.attachments.after();
      item.report();
    } catch (...) {
      item.error = std::current_exception();
    }
    item.attachments = {};
  }

  // Runs the first item. Requires the lock, !busy and at least one item.
  void run_front(std::unique_lock<std::mutex>& lock) {
    busy = true;
    runner = std::this_thread::get_id();
    const std::shared_ptr<Item> item = items.front();
    lock.unlock();
    run(*item);
    lock.lock();
    items.pop_front();
    item->ended = true;
    busy = false;
    advanced.notify_all();
    if (stopping || !items.empty()) submitted.notify_one();
  }

  void progress_loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      submitted.wait(lock, [this] { return !busy && (stopping || !items.empty()); });
      if (items.empty()) return;
      run_front(lock);
    }
  }

  static void wake_progress(const std::shared_ptr<Core>& core) {
    if (!core->progress.joinable()) {
      core->progress = std::thread([core] { core->progress_loop(); });
      if (core->stopping) core->progress.detach();
    }
    core->submitted.notify_one();
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
  if (core_->busy && core_->runner == std::this_thread::get_id()) {  // [Note: own thread]
    core_->stopping = true;
    if (core_->progress.joinable()) core_->progress.detach();
    return;
  }
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
  const std::shared_ptr<Core> core = core_;  // *this may be destroyed meanwhile: [Note: own thread]
  auto item = std::make_shared<Item>(core, std::move(call), std::move(attachments));
  std::unique_lock lock(core->mutex);
  const bool plain = !item->attachments.before && !item->attachments.after;
  if (plain && !core->busy && core->items.empty() && core->transport->quick(item->call)) {
    core->busy = true;
    core->runner = std::this_thread::get_id();
    lock.unlock();
    bool ended = true;
    try {
      item->posted = true;
      item->begin();
      core->transport->post(item->call);
      ended = core->transport->finish(item->call, /*may_give_up=*/true);
      if (ended) item->report();
    } catch (...) {
      item->error = std::current_exception();
    }
    if (ended) item->attachments = {};
    lock.lock();
    core->busy = false;
    item->ended = ended;
    // Other threads may have queued items meanwhile; this one still comes first.
    if (!ended) core->items.push_front(item);
    if (!core->items.empty()) Core::wake_progress(core);
    core->advanced.notify_all();
  } else {
    Core::wake_progress(core);  // first, so that nothing is queued if it cannot start a thread
    core->items.push_back(item);
  }
  return Work(std::move(item));
}

}  // namespace tessera::comm
