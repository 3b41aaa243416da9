#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

namespace tessera::parallel {

// [Note: graphs] CUDA graph of a step. A step on a GPU consists of thousands of kernels, which the
// host would launch one by one. If every step has the same shapes and does not synchronize with the
// host, it is recorded once and then launched as a whole. Values that differ from step to step (the
// batch, the learning rate, the number of tokens) are in device memory that is filled beforehand.
//
// Recording does the host's work of a step, but runs nothing on the device. Its memory comes from a
// separate pool that the graph keeps.
class StepGraph {
 public:
  // Returns the reason that this program cannot record graphs; null if it can.
  static const char* problem();

  StepGraph();
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Records the work that f enqueues on this thread's stream, which must not be the default stream.
  // If f throws, nothing is recorded.
  void record(c10::Device device, const std::function<void()>& f);
  bool recorded() const;
  void launch();  // on this thread's stream

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Scope in which this thread's work on the device goes to another stream. That stream first waits
// for the old one, and at the end the old one waits for it. No effect without a stream.
class OtherStream {
 public:
  explicit OtherStream(std::optional<c10::Stream> stream);
  ~OtherStream();
  OtherStream(const OtherStream&) = delete;
  OtherStream& operator=(const OtherStream&) = delete;

 private:
  std::optional<c10::Stream> stream_, before_;
};
// Returns a stream other than the default one; nullopt if the device is not a GPU.
std::optional<c10::Stream> own_stream(c10::Device device);

}  // namespace tessera::parallel
