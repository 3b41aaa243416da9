#pragma once

#include <memory>
#include <utility>

namespace tessera::comm {

// The running operation behind a Work; each backend has its own.
class WorkState {
 public:
  virtual ~WorkState() = default;
  // Until the result may be read; throws what went wrong.
  virtual void wait() = 0;
  // Whether wait() would return or throw at once.
  virtual bool done() const = 0;
};

// Handle of an operation in flight. A small value: copy it and keep it. The operation goes on and
// keeps its buffers alive without it, but only wait() reports a failure. A default-constructed Work
// is complete. Any thread may wait.
class [[nodiscard]] Work {
 public:
  Work() = default;
  // Of a backend's running operation.
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Returns when the result may be read, or throws what went wrong. For CPU buffers it blocks the
  // calling thread; for CUDA buffers it makes the current stream wait.
  void wait() const {
    if (state_) state_->wait();
  }

  // Whether wait() would return or throw at once.
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tessera::comm
