#include "tessera/planner/run.h"

#include <cmath>

#include "tessera/core/text.h"

namespace tessera::planner {

std::vector<ParameterSize> gpt_parameters(const ModelShape& shape) {
  const std::int64_t h = shape.hidden;
  std::vector<ParameterSize> all;
  const auto add = [&](std::string name, std::int64_t numel) {
    if (numel > 0) all.push_back({std::move(name), numel});
  };
  const auto with_bias = [&](const std::string& name, std::int64_t weight, std::int64_t bias) {
    add(name + ".weight", weight);
    if (shape.biases) add(name + ".bias", bias);
  };
  add("tok.weight", shape.vocab * h);
  add("pos.weight", shape.positions * h);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = str("blocks.", layer, ".");
    const std::int64_t qkv = h + 2 * shape.kv_heads * shape.head_dim();
    with_bias(block + "norm1", h, h);
    with_bias(block + "qkv", h * qkv, qkv);
    with_bias(block + "proj", h * h, h);
    with_bias(block + "norm2", h, h);
    const std::int64_t up = (shape.swiglu ? 2 : 1) * shape.ffn;
    with_bias(block + "fc", h * up, up);
    with_bias(block + "proj2", shape.ffn * h, h);
  }
  with_bias("norm", h, h);
  add("head.weight", shape.head_params());
  return all;
}

RunPlan plan_run(const RunQuestion& q) {
  const Sharding sharded = sharding_of_stage(q.stage);
  std::int64_t part = 0;  // elements of all chunks of one rank
  for (const ParameterSize& each : gpt_parameters(q.model)) {
    part += chunk_elements(each.numel, q.dp);
  }
  const std::int64_t whole = part * q.dp;
  const bool grads_cut = sharded.grads && q.policy == ReducePolicy::each;
  RunPlan plan;
  plan.params = (sharded.params ? part : whole) * q.layout.param;
  plan.grads = (grads_cut ? part : whole) * q.layout.grad;
  plan.optimizer = (sharded.optimizer ? part : whole) * q.layout.optimizer();
  plan.activations =
      gpt_activation_bytes({q.model, q.micro_batch, q.seq, q.layout.param, q.recompute});

  TrafficQuestion traffic;
  traffic.stage = q.stage;
  traffic.dp = q.dp;
  traffic.micro_batches = q.accumulation;
  traffic.param_bytes = static_cast<double>(whole * q.layout.param);
  traffic.grad_bytes = static_cast<double>(whole * q.layout.grad);
  traffic.policy = q.policy;
  traffic.keep_params = q.keep_params;
  // The padded bytes divide by the ranks, so what is rounded away is the error of the fractions.
  plan.sent_bytes = std::llround(data_parallel_traffic(traffic).total());
  return plan;
}

}  // namespace tessera::planner
