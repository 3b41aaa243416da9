#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::dashboard {

// [Note: worker threads] One thread per core answers requests, plus one to cover the changeover:
// with a thread per client all would share the processor, and some answers would take many times as
// long as others. A thread that has to block (for a slot of a long calculation, for new lines of a
// run, or until a listener has received them) holds a Blocked, and another thread replaces it. No
// thread waits for a request or for a slow client of an answer: [Note: the server].
class WorkerPool {
 public:
  // `work` does one task and is called by several threads concurrently. If it returns false, all
  // threads end. At most `active` threads run, besides blocked ones; at most `most` exist.
  WorkerPool(int active, int most, std::function<bool()> work);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void begin();
  // Waits until the running tasks are done, and ends all threads.
  void end();

  // Held by a thread of the pool while it blocks.
  class Blocked {
   public:
    explicit Blocked(WorkerPool& pool) : pool_(pool) { pool_.begin_blocking(); }
    ~Blocked() { pool_.end_blocking(); }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    WorkerPool& pool_;
  };

 private:
  void run_thread();
  void fill_slots();
  void begin_blocking();
  void end_blocking();

  const int active_, most_;
  const std::function<bool()> work_;
  std::mutex mutex_;
  std::condition_variable free_;  // a slot is free, or the pool ends
  int working_ = 0;               // may exceed active_ briefly when blocked threads return
  int spare_ = 0;                 // threads waiting for a slot
  bool over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::dashboard
