#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <memory>

namespace tessera::comm::nccl {

// Converts times of GPU events to the host's clock.
//
// Events only give the time between two of them. An anchor is an event whose host time is known: it
// was recorded on an idle stream and waited for. Differences have single precision, so an anchor is
// replaced after a few seconds, which also removes the drift between the two clocks.
class DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Anchor {
    c10::Event event;
    Time time;
    // Returns the host time of `later`, a completed event that was recorded after the anchor.
    Time when(const c10::Event& later) const;
  };

  explicit DeviceClock(c10::Device device);

  // Returns an anchor for events that are recorded from now on. One thread at a time.
  std::shared_ptr<const Anchor> anchor();

 private:
  const c10::Stream stream_;
  std::shared_ptr<const Anchor> last_;
};

}  // namespace tessera::comm::nccl
