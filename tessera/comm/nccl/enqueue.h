#pragma once

#include <c10/core/Device.h>

#include "tessera/comm/collective.h"
#include "tessera/comm/nccl/api.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm::nccl {

// Where a collective is put: a communicator and the stream it runs on, which is the current one of
// the device.
struct Place {
  const Api& api;
  Comm comm;
  c10::Device device;
  Stream stream;
  int rank;
  int ranks;
  bool deterministic;
};

// Whether the call needs copies or sums of our own besides what NCCL does.
bool uses_tensors(const Collective& call, int rank, int ranks, bool deterministic);

// Puts a collective, send or receive (to or from rank `call.peer` of the communicator) on the
// stream and returns. Allocates on that stream what it needs besides the buffers of the call.
void enqueue(const Place& place, const Collective& call, TrafficMeter& meter);

}  // namespace tessera::comm::nccl
