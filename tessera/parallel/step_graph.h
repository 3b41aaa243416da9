#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

namespace tessera::parallel {

// [Note: graphs] A step on a GPU is some thousand kernels, each of which the host would launch
// anew. Where every step has the same shapes and asks the host nothing, it is recorded once, as a
// CUDA graph, and then launched as a whole. What differs from step to step (the batch, the learning
// rate, the number of tokens) lies in device memory that is filled before.
//
// Recording does all that the host does in a step, and nothing on the device. Its memory comes from
// a pool of its own, which the graph keeps.
class StepGraph {
 public:
  // Null if this program can record graphs; otherwise why not.
  static const char* problem();

  StepGraph();
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Records what f puts on this thread's stream, which must not be the default one. If f throws,
  // nothing was recorded.
  void record(c10::Device device, const std::function<void()>& f);
  bool recorded() const;
  void launch();  // on this thread's stream

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// While it lives, this thread's work on the device goes to another stream, which first waits for
// what the old one has, and for which the old one waits at the end. Without a stream: nothing.
class OtherStream {
 public:
  explicit OtherStream(std::optional<c10::Stream> stream);
  ~OtherStream();
  OtherStream(const OtherStream&) = delete;
  OtherStream& operator=(const OtherStream&) = delete;

 private:
  std::optional<c10::Stream> stream_, before_;
};
// One that is not the default, for a device that has streams.
std::optional<c10::Stream> own_stream(c10::Device device);

}  // namespace tessera::parallel
