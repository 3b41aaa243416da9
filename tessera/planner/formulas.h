#pragma once

#include <algorithm>
#include <cmath>

#include "tessera/core/portable_math.h"

// Basic formulas of data, tensor and pipeline parallelism.
namespace tessera::planner {

// Seconds of a ring all-reduce of `bytes` over n ranks: 2(n-1) steps of bytes/n each. `bandwidth`:
// bytes/s of a link in one direction. `latency`: additional seconds per step.
inline double ring_all_reduce_time(double bytes, int n, double bandwidth, double latency = 0) {
  return 2.0 * (n - 1) / n * bytes / bandwidth + 2.0 * (n - 1) * latency;
}
inline double ring_all_reduce_bytes(double bytes, int n) { return 2.0 * (n - 1) / n * bytes; }

// Returns the part of a transfer that computation does not hide.
inline double exposed(double transfer, double hiding) { return std::max(0.0, transfer - hiding); }

// Simple scaling law: each doubling of the ranks costs a fraction c.
inline double scaling_efficiency(double n, double c) { return 1.0 / (1.0 + c * portable::log2(n)); }

// Idle fraction of a pipeline of p stages and k micro-batches, with v chunks of the model on each
// rank (interleaved), for GPipe and 1F1B.
inline double bubble_fraction(int p, int k, int v = 1) {
  return static_cast<double>(p - 1) / (static_cast<double>(v) * k + p - 1);
}
// Speedup over one stage.
inline double pipeline_speedup(int p, int k) { return static_cast<double>(p) * k / (k + p - 1); }
// Each of the k + p - 1 slots costs a forward and a backward.
inline double pipeline_time(int p, int k, double forward, double backward) {
  return (k + p - 1) * (forward + backward);
}

}  // namespace tessera::planner
