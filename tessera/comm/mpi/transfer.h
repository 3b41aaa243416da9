#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace tessera::comm::mpi {

// Counts events, for a thread that waits for one of several things. It reads count(), looks at the
// things, and then calls wait() with that count: what happened in between is not missed.
class EventCount {
 public:
  std::uint64_t count() const {
    std::lock_guard lock(mutex_);
    return count_;
  }
  void notify() {
    {
      std::lock_guard lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  // Returns when the count is no longer `seen`, or after `slice`.
  void wait(std::uint64_t seen, std::chrono::nanoseconds slice) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, slice, [&] { return count_ != seen; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t count_ = 0;
};

// One message on its way, handed to the runtime by another thread.
class Transfer {
 public:
  enum class Kind : std::uint8_t { send, receive };

  Transfer(Kind what, void* where, std::size_t size, int whom, int under)
      : kind(what), data(where), bytes(size), rank(whom), tag(under) {}

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // After done(): what MPI said, "" if all went well, and how much a receive got.
  const std::string& error() const noexcept { return error_; }
  std::size_t received() const noexcept { return received_; }

  const Kind kind;
  void* const data;
  const std::size_t bytes;  // of a receive: the most that may come
  const int rank;           // of the job
  const int tag;
  std::shared_ptr<EventCount> events;  // told when it is done
  std::shared_ptr<void> keep;          // memory that must live as long as MPI may touch it

  // For the thread that carries it out.
  std::size_t open = 0;  // parts of it that MPI has not finished
  void add_received(std::size_t count) noexcept { received_ += count; }
  void set_error(const std::string& text) {
    if (error_.empty()) error_ = text;
  }
  void finish() {
    keep.reset();
    const std::shared_ptr<EventCount> waiter = std::move(events);
    done_.store(true, std::memory_order_release);
    if (waiter) waiter->notify();
  }

 private:
  std::atomic<bool> done_{false};
  std::string error_;
  std::size_t received_ = 0;
};
using TransferPtr = std::shared_ptr<Transfer>;

}  // namespace tessera::comm::mpi
