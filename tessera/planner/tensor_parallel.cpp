#include "tessera/planner/tensor_parallel.h"

#include <cmath>

#include "tessera/planner/adapters.h"

namespace tessera::planner {

TensorParallelTraffic tensor_parallel_traffic(const TensorParallelQuestion& q) {
  TensorParallelTraffic sent;
  if (q.tp == 1) return sent;
  // Half an all-reduce, in shards of equal size.
  const auto half = [&](double elements, double bytes) {
    return (q.tp - 1) * std::ceil(elements / q.tp) * bytes;
  };
  const ModelShape& m = q.model;
  const auto hidden = static_cast<double>(m.hidden);
  const double rows = static_cast<double>(q.batch) * static_cast<double>(q.seq);
  const auto layers = static_cast<double>(q.layers < 0 ? m.layers : q.layers);
  const double once = half(rows * hidden, q.element);
  const double norm = (m.biases.norm ? 2 : 1) * hidden;
  const bool cut = q.sequence_parallel;

  const double layers_forward = layers * 4 * once;
  sent.recompute = q.recompute == Recompute::full ? layers_forward : 0;
  const bool frozen = m.lora.any();
  const AdapterTraffic adapted = frozen ? adapter_traffic(q, static_cast<std::int64_t>(layers))
                                        : AdapterTraffic{layers_forward};
  sent.layers = layers_forward + adapted.activations + sent.recompute;
  sent.adapters = adapted.adapters;
  if (cut && !frozen) sent.norms = layers * 2 * half(2 * norm, q.element);
  if (m.kv_heads < q.tp && !frozen) {
    const auto kv = static_cast<double>(2 * m.kv_heads * m.head_dim());
    sent.shared = layers * 2 * half(kv * (hidden + (m.biases.qkv ? 1 : 0)), q.element);
  }
  sent.forward = layers_forward;
  sent.backward = adapted.activations + adapted.adapters;
  if (q.embedding) {
    const double back = cut && !frozen ? once : 0;
    sent.embedding = (cut ? once : 2 * once) + back;
    sent.forward += cut ? once : 2 * once;
    sent.backward += back;
  }
  if (q.head) {
    sent.head = 2 * once;
    sent.loss = 2 * half(rows, 4) + 2 * half(2 * rows, 4);
    sent.forward += sent.loss + (cut ? once : 0);
    sent.backward += cut ? once : 2 * once;
    if (cut && !frozen) sent.norms += 2 * half(norm, q.element);
  }
  sent.backward += sent.norms + sent.shared;
  return sent;
}

}  // namespace tessera::planner
