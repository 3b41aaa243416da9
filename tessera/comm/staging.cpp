#include "tessera/comm/staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <utility>

namespace tessera::comm {
namespace {

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

// State that must live until the operation has ended. Uses c10's device-neutral streams and events,
// so that this file needs no CUDA header.
struct Staged {
  at::Tensor out, in;            // on the device
  at::Tensor host_out, host_in;  // pinned
  std::unique_ptr<c10::Event> copied_in;
};

}  // namespace

Work submit_staged(Backend& backend, Collective what, const at::Tensor& out, const at::Tensor& in,
                   Attachments attachments) {
  const at::Device device = (in.defined() ? in : out).device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto staged = std::make_shared<Staged>();
  staged->out = out;
  staged->in = in;
  // Values that the operation does not change (a reduce on a rank other than the root) must survive
  // the copy back, so an output that is also the input shares its buffer.
  if (in.defined()) {
    staged->host_in = pinned_like(in);
    staged->host_in.copy_(in, /*non_blocking=*/true);
    what.in = staged->host_in.const_data_ptr();
  }
  if (out.defined()) {
    staged->host_out = in.defined() && in.data_ptr() == out.data_ptr() && in.numel() == out.numel()
                           ? staged->host_in
                           : pinned_like(out);
    what.out = staged->host_out.data_ptr();
  }
  // Also orders the operation after pending work on `out` in the stream.
  staged->copied_in = std::make_unique<c10::Event>(device.type());
  staged->copied_in->record(guard.getStream(device));

  attachments.keep = staged;
  attachments.before = [staged] { staged->copied_in->synchronize(); };
  if (out.defined()) {
    attachments.after = [staged, device, guard] {
      const c10::StreamGuard side(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
      staged->out.copy_(staged->host_out, /*non_blocking=*/true);
      c10::Event copied_out(device.type());
      copied_out.record(side.current_stream());
      copied_out.synchronize();
    };
  }
  return backend.submit(std::move(what), std::move(attachments));
}

}  // namespace tessera::comm
