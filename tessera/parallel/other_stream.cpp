#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/parallel/step_graph.h"

namespace tessera::parallel {
namespace {

// Orders the work now on `from` before all future work on `to`.
void in_order(const c10::Stream& from, const c10::Stream& to) {
  c10::Event event(from.device_type());
  event.record(from);
  event.block(to);
}

}  // namespace

std::optional<c10::Stream> own_stream(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

OtherStream::OtherStream(std::optional<c10::Stream> stream) : stream_(stream) {
  if (!stream_) return;
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  before_ = guard.getStream(stream_->device());
  if (*before_ == *stream_) {
    stream_.reset();
    return;
  }
  in_order(*before_, *stream_);
  guard.exchangeStream(*stream_);
}

OtherStream::~OtherStream() {
  if (!stream_) return;
  in_order(*stream_, *before_);
  c10::impl::VirtualGuardImpl(stream_->device_type()).exchangeStream(*before_);
}

}  // namespace tessera::parallel
