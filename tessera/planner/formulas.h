#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

// The short formulas of data, tensor and pipeline parallelism, each in one place.
namespace tessera::planner {

// global batch = micro batch · accumulation · dp; tokens = global batch · sequence length.
struct Batch {
  std::int64_t micro = 1;
  std::int64_t accumulation = 1;
  std::int64_t dp = 1;
  std::int64_t seq = 1;

  std::int64_t samples() const { return micro * accumulation * dp; }
  std::int64_t tokens() const { return samples() * seq; }
};

// Seconds of a ring all-reduce of `bytes` over n ranks: 2(n-1) steps of bytes/n each. `bandwidth`
// is what a link moves in one direction, `latency` what a step costs besides.
inline double ring_all_reduce_time(double bytes, int n, double bandwidth, double latency = 0) {
  return 2.0 * (n - 1) / n * bytes / bandwidth + 2.0 * (n - 1) * latency;
}
inline double ring_all_reduce_bytes(double bytes, int n) { return 2.0 * (n - 1) / n * bytes; }

// What is left of a transfer after the computation that hides it.
inline double exposed(double transfer, double hiding) { return std::max(0.0, transfer - hiding); }

// The simple scaling law: every doubling of the ranks costs a fraction c.
inline double scaling_efficiency(double n, double c) { return 1.0 / (1.0 + c * std::log2(n)); }

// Idle fraction of a pipeline of p stages and k micro-batches, with v chunks of the model on each
// rank (interleaved), for GPipe and 1F1B.
inline double bubble_fraction(int p, int k, int v = 1) {
  return static_cast<double>(p - 1) / (static_cast<double>(v) * k + p - 1);
}
// How much faster than one stage alone.
inline double pipeline_speedup(int p, int k) { return static_cast<double>(p) * k / (k + p - 1); }
// Each of the k + p - 1 slots costs a forward and a backward.
inline double pipeline_time(int p, int k, double forward, double backward) {
  return (k + p - 1) * (forward + backward);
}

// Bytes a rank sends per step for tensor parallelism: four all-reduces of b·s·h elements a layer,
// six when the forward pass is recomputed.
inline double tensor_parallel_bytes(int tp, double layers, double hidden, double tokens,
                                    double element_bytes, bool recompute = false) {
  return layers * (recompute ? 6 : 4) * ring_all_reduce_bytes(tokens * hidden * element_bytes, tp);
}

// Bytes of activations of one transformer layer in 16 bits with nothing, the cheap parts, or
// everything recomputed. `tp` cuts the parts between the linears, sequence parallelism the rest.
struct ActivationQuestion {
  double seq = 0, batch = 0, hidden = 0, heads = 0;
  int tp = 1;
  bool sequence_parallel = false;
  bool attention_matrix_kept = true;  // neither fused nor selectively recomputed
};
inline double layer_activation_bytes(const ActivationQuestion& q) {
  const double sbh = q.seq * q.batch * q.hidden;
  const double scores = q.attention_matrix_kept ? 5 * q.heads * q.seq / q.hidden : 0;
  return q.sequence_parallel ? sbh * (34 + scores) / q.tp
                             : sbh * (10 + 24.0 / q.tp + scores / q.tp);
}
inline double recomputed_layer_bytes(double seq, double batch, double hidden) {
  return 2 * seq * batch * hidden;
}

}  // namespace tessera::planner
