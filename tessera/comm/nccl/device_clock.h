#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <memory>

namespace tessera::comm::nccl {

// When something happened on a GPU, as the host's clock tells it.
//
// Events only know how long one came after another. An anchor is an event of which the host's time
// is known: it was recorded on a stream that has nothing to do, and waited for. Differences are
// told in single precision, so an anchor serves for some seconds and then there is a new one, which
// also takes the drift between the two clocks away.
class DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Anchor {
    c10::Event event;
    Time time;
    // When `event`, which was recorded later and has come, came.
    Time when(const c10::Event& later) const;
  };

  explicit DeviceClock(c10::Device device);

  // For events that are recorded from now on. One thread at a time.
  std::shared_ptr<const Anchor> anchor();

 private:
  const c10::Stream stream_;
  std::shared_ptr<const Anchor> last_;
};

}  // namespace tessera::comm::nccl
