#include "tessera/planner/tensor_parallel.h"

namespace tessera::planner {

TensorParallelTraffic tensor_parallel_traffic(const TensorParallelQuestion& q) {
  TensorParallelTraffic sent;
  if (q.tp == 1) return sent;
  // Half an all-reduce, in shards of equal size.
  const auto half = [&](std::int64_t elements, std::int64_t bytes) {
    return (q.tp - 1) * ((elements + q.tp - 1) / q.tp) * bytes;
  };
  const ModelShape& m = q.model;
  const std::int64_t rows = q.batch * q.seq, layers = q.layers < 0 ? m.layers : q.layers;
  const std::int64_t once = half(rows * m.hidden, q.element);
  const std::int64_t norm = (m.biases ? 2 : 1) * m.hidden;
  const bool cut = q.sequence_parallel;

  const std::int64_t layer_forward = 4 * once;
  std::int64_t layer_backward = 4 * once;
  if (cut) layer_backward += 2 * half(2 * norm, q.element);
  if (m.kv_heads < q.tp) {
    const std::int64_t kv = 2 * m.kv_heads * m.head_dim();
    layer_backward += 2 * half(kv * (m.hidden + (m.biases ? 1 : 0)), q.element);
  }
  sent.forward = layers * layer_forward;
  sent.backward = layers * layer_backward;
  if (q.recompute == Recompute::full) sent.recompute = layers * layer_forward;
  if (q.embedding) {
    sent.forward += cut ? once : 2 * once;
    sent.backward += cut ? once : 0;
  }
  if (q.head) {
    sent.forward += 2 * half(rows, 4) + 2 * half(2 * rows, 4) + (cut ? once : 0);
    sent.backward += cut ? once + 2 * half(norm, q.element) : 2 * once;
  }
  return sent;
}

}  // namespace tessera::planner
