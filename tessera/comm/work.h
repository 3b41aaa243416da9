#pragma once

#include <memory>
#include <utility>

namespace tessera::comm {

// State of an operation behind a Work, implemented by each backend.
class WorkState {
 public:
  virtual ~WorkState() = default;
  // Waits until the result may be read. Throws if the operation failed.
  virtual void wait() = 0;
  // Returns whether wait() would return or throw immediately.
  virtual bool done() const = 0;
};

// Handle of an asynchronous operation. Cheap to copy. Without the handle the operation continues
// and keeps its buffers alive, but only wait() reports a failure. A default-constructed Work is
// complete. Any thread may wait.
class [[nodiscard]] Work {
 public:
  Work() = default;
  // Called by backends.
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Waits until the result may be read. Throws if the operation failed. For CPU buffers it blocks
  // the calling thread; for CUDA buffers it makes the current stream wait.
  void wait() const {
    if (state_) state_->wait();
  }

  // Returns whether wait() would return or throw immediately.
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tessera::comm
