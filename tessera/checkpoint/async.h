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

// Copy of shards, so that training can continue and change them. Runs are packed: the copy holds
// only the saved elements.
class Snapshot {
 public:
  explicit Snapshot(Charge charge = {}) : charge_(std::move(charge)) {}
  // Replaces the contents. The memory is reused if it is large enough.
  void take(const std::vector<Shard>& shards);
  const std::vector<Shard>& shards() const { return shards_; }
  std::int64_t bytes() const { return capacity_; }  // size of the memory
  void release();

 private:
  Charge charge_;
  std::shared_ptr<void> charged_;
  std::unique_ptr<std::byte[]> memory_;
  std::int64_t capacity_ = 0;
  std::vector<Shard> shards_;
};

// Saves in the background: start() copies the shards, and a thread writes and publishes them. One
// save at a time: start() waits for the previous save. The thread calls the functions of the team,
// so they must not use the communicator of training.
class AsyncSaver {
 public:
  AsyncSaver(std::string dir, Team team, SaveOptions options = {});
  // Waits. Passes an error that wait() did not report to SaveOptions::warn, and ignores exceptions
  // of that.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Starts a save. If the previous save failed and wait() did not report it, throws that error and
  // starts nothing.
  void start(const Description& about, const std::vector<Shard>& shards);
  // Saves in the foreground, without a copy.
  Saved save_now(const Description& about, const std::vector<Shard>& shards);
  // Waits until the save is done. Throws its error, once. Returns an empty result without a save.
  Saved wait();
  bool busy() const { return running_.load(std::memory_order_acquire); }

  // Total seconds that start(), save_now() and wait() blocked the caller: the cost for training.
  double exposed_seconds() const { return exposed_; }
  std::int64_t snapshot_bytes() const { return snapshot_.bytes(); }

 private:
  void join();
  void join_and_rethrow();

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
