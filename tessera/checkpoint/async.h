#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/checkpoint/save.h"

namespace tessera::checkpoint {

// Shards copied aside, so that training may go on and change them. Runs are put together: the copy
// has what is saved and nothing else.
class Snapshot {
 public:
  explicit Snapshot(Charge charge = {}) : charge_(std::move(charge)) {}
  // Takes the place of what was there; the memory is kept from one to the next.
  void take(const std::vector<Shard>& shards);
  const std::vector<Shard>& shards() const { return shards_; }
  std::int64_t bytes() const { return capacity_; }  // of memory that it holds
  void release();

 private:
  Charge charge_;
  std::shared_ptr<void> charged_;
  std::unique_ptr<std::byte[]> memory_;
  std::int64_t capacity_ = 0;
  std::vector<Shard> shards_;
};

// Saves in the background: start() copies, and a thread writes and publishes. One save at a time: a
// second start() first waits for the first one. The team's functions are called from that thread,
// so they need a way to talk that training does not use meanwhile.
class AsyncSaver {
 public:
  AsyncSaver(std::string dir, Team team, SaveOptions options = {});
  // Waits. An error that nobody asked for goes to SaveOptions::warn; what that throws is dropped,
  // since nobody is left to catch it.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Throws what the save before failed with, if wait() was not called for it; then nothing is
  // started.
  void start(const Description& about, const std::vector<Shard>& shards);
  // The same in the foreground, without a copy.
  Saved save_now(const Description& about, const std::vector<Shard>& shards);
  // Until the save is done. Throws what it failed with, once. Empty if none was started.
  Saved wait();
  bool busy() const { return running_.load(std::memory_order_acquire); }

  // How long these held the caller up, in all: what saving costs training.
  double exposed_seconds() const { return exposed_; }
  std::int64_t snapshot_bytes() const { return snapshot_.bytes(); }

 private:
  void join();
  void settle();  // and throws what the save failed with

  std::string dir_;
  Team team_;
  SaveOptions options_;
  Snapshot snapshot_;
  Description about_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  Saved saved_;
  std::exception_ptr error_;
  double exposed_ = 0;
};

}  // namespace tessera::checkpoint
