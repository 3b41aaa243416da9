#pragma once

#include <c10/core/Device.h>

#include "tessera/comm/collective.h"
#include "tessera/comm/nccl/api.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm::nccl {

// Communicator and stream of a collective. The stream is the current one of the device.
struct Place {
  const Api& api;
  Comm comm;
  c10::Device device;
  Stream stream;
  int rank;
  int ranks;
  bool deterministic;
};

// Returns whether the call needs tensor operations (copies or sums) besides NCCL's kernels.
bool uses_tensors(const Collective& call, int rank, int ranks, bool deterministic);

// Enqueues a collective, send or receive (to or from rank `call.peer` of the communicator) on the
// stream. Allocates temporary buffers on that stream.
void enqueue(const Place& place, const Collective& call, TrafficMeter& meter);

}  // namespace tessera::comm::nccl
