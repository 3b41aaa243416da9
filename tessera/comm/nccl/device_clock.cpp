#include "tessera/comm/nccl/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/comm/signal.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

namespace {

constexpr auto kAnchorServes = 5s;
constexpr auto kLongestLook = 200us;  // after that the stream was not idle: keep the old anchor

std::chrono::nanoseconds nanoseconds_of(double milliseconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6));
}

}  // namespace

DeviceClock::Time DeviceClock::Anchor::when(const c10::Event& later) const {
  return time + nanoseconds_of(event.elapsedTime(later));
}

DeviceClock::DeviceClock(c10::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

std::shared_ptr<const DeviceClock::Anchor> DeviceClock::anchor() {
  const Time before = std::chrono::steady_clock::now();
  if (last_ && before - last_->time < kAnchorServes) return last_;
  auto next = std::make_shared<Anchor>(
      Anchor{c10::Event(stream_.device_type(), c10::EventFlag::BACKEND_DEFAULT), before});
  next->event.record(stream_);
  while (!next->event.query()) {
    if (last_ && std::chrono::steady_clock::now() - before > kLongestLook) return last_;
    relax();
  }
  next->time = before + (std::chrono::steady_clock::now() - before) / 2;
  last_ = std::move(next);
  return last_;
}

}  // namespace tessera::comm::nccl
