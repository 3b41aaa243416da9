#include "tessera/planner/step_time.h"

#include <algorithm>
#include <cmath>

#include "tessera/planner/formulas.h"
#include "tessera/planner/layer_time.h"
#include "tessera/planner/pipeline_time.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// A part of the model, timed; `reduce` is one collective along tp.
ChunkTime part_time(const Hardware& hardware, const PartWork& part, const Work& reduce) {
  ChunkTime time;
  time.forward = elapsed(hardware, part.forward + reduce * part.forward_reduces);
  time.tp_forward = time.forward - elapsed(hardware, part.forward);
  const Work backward = part.recompute + part.backward_input + part.backward_weight;
  const double all =
      elapsed(hardware, backward + reduce * (part.recompute_reduces + part.backward_reduces));
  time.tp_backward = all - elapsed(hardware, backward);
  // The two halves by what each would take alone.
  const double weight = elapsed(hardware, part.backward_weight);
  const double input = elapsed(hardware, part.recompute + part.backward_input);
  const double own = all - time.tp_backward;
  time.backward_weight = weight + input > 0 ? own * weight / (weight + input) : 0;
  time.backward_input = all - time.backward_weight;
  return time;
}

void add(ChunkTime& to, const ChunkTime& part, double times) {
  to.forward += times * part.forward;
  to.backward_input += times * part.backward_input;
  to.backward_weight += times * part.backward_weight;
  to.tp_forward += times * part.tp_forward;
  to.tp_backward += times * part.tp_backward;
}

// As this run sees it: a graph launches its kernels at once.
Hardware seen_by(const Question& q) {
  Hardware hardware = q.hardware;
  if (!q.launches()) hardware.launch = 0;
  return hardware;
}

double hop_time(const Question& q) {
  const double sent =
      collective_time(q.hardware, Collective::send, hop_bytes(q), 2, stages_share_node(q) ? 2 : 1);
  return 2 * q.hardware.launch + sent;
}

// [Note: overlap] What is left of a transfer in `parts` pieces while computation goes on: the last
// piece, which nothing hides, and what is longer than the computation. What is hidden is not free:
// collectives take units and memory bandwidth away from the kernels beside them.
constexpr double kInterference = 0.55;
double left(double transfer, double parts, double hiding) {
  const double waits = std::max(transfer / parts, transfer - hiding * (1 - 1 / parts));
  return waits + kInterference * (transfer - waits);
}

}  // namespace

std::vector<std::vector<ChunkTime>> chunk_times(const Question& q) {
  const Work reduce = q.tp() > 1 ? tensor_reduce(q) : Work{};
  const Hardware hardware = seen_by(q);
  const ChunkTime layer = part_time(hardware, layer_work(q), reduce);
  const ChunkTime embedding = part_time(hardware, embedding_work(q), reduce);
  const ChunkTime head = part_time(hardware, head_work(q), reduce);
  const double hop = q.pp() > 1 ? hop_time(q) : 0;
  std::vector<std::vector<ChunkTime>> times;
  for (const auto& shares : stage_shares(q)) {
    std::vector<ChunkTime>& rank = times.emplace_back();
    for (const StageShare& share : shares) {
      ChunkTime& time = rank.emplace_back();
      add(time, layer, real(share.layers));
      if (share.embedding) add(time, embedding, 1);
      if (share.head) add(time, head, 1);
      time.hop = hop;
      const double params = params_on_rank(q, {share});
      time.grad_bytes = params * q.layout.grad;
      time.param_bytes = params * q.layout.param;
    }
  }
  return times;
}

double data_parallel_time(const Question& q, double params, double forward, double backward) {
  if (q.dp() == 1) return 0;
  const Sharding sharded = sharding_of_stage(q.zero);
  const int per_node = dp_per_node(q);
  const double grads = params * q.layout.grad, weights = params * q.layout.param;
  const double buckets = std::max(1.0, std::ceil(grads / bucket_bytes(q, params)));
  const auto in_buckets = [&](Collective kind, double bytes, bool overlap) {
    const double parts = overlap ? buckets : 1;
    return parts * collective_time(q.hardware, kind, bytes / parts, q.dp(), per_node);
  };
  const double reduce =
      in_buckets(sharded.optimizer ? Collective::reduce_scatter : Collective::all_reduce, grads,
                 q.overlap_grad_reduce);
  const double gather = in_buckets(Collective::all_gather, weights, q.overlap_param_gather);
  const double times = q.policy() == ReducePolicy::each ? real(q.micros()) : 1;
  double hidden_by = backward;
  double exposed_time = 0;
  if (sharded.params) {
    const auto gathers = [&](double hiding) {
      return q.overlap_param_gather ? left(gather, buckets, hiding) : gather;
    };
    exposed_time += real(q.micros()) * gathers(forward);
    if (!q.keep_params) {
      exposed_time += real(q.micros()) * gathers(backward);
      if (q.overlap_param_gather) hidden_by = exposed(backward, gather);
    }
  } else if (sharded.optimizer) {
    // Of updated parameters: the next forward hides it.
    exposed_time += q.overlap_param_gather ? left(gather, buckets, forward) : gather;
  }
  exposed_time += times * (q.overlap_grad_reduce ? left(reduce, buckets, hidden_by) : reduce);
  return exposed_time;
}

// Reads and writes its state, reads the gradient as often as it is looked at (for its norm, to
// clip it, to clear it) and writes the parameters.
double optimizer_time(const Question& q, double params) {
  const double per_param =
      2.0 * q.layout.optimizer() + q.layout.param + q.hardware.gradient_passes * q.layout.grad;
  const double shard = params / (sharding_of_stage(q.zero).optimizer ? q.dp() : 1);
  const double launches = q.light_activations() ? 4 : 30;
  return elapsed(seen_by(q), {pass_time(q.hardware, shard * per_param), launches});
}

StepTime step_time(const Question& q) {
  const auto times = chunk_times(q);
  const auto shares = stage_shares(q);
  StepTime step;
  std::vector<RankTime> ranks;
  double slowest = 0, tp = 0, after = 0;
  for (std::size_t r = 0; r < times.size(); ++r) {
    RankTime& rank = ranks.emplace_back();
    double rank_tp = 0;
    for (const ChunkTime& chunk : times[r]) {
      rank.forward += chunk.forward;
      rank.backward_input += chunk.backward_input;
      rank.backward_weight += chunk.backward_weight;
      rank_tp += chunk.tp_forward + chunk.tp_backward;
    }
    if (rank.total() > slowest) {
      slowest = rank.total();
      tp = rank_tp;
    }
    const double params = params_on_rank(q, shares[r]);
    const double dp =
        data_parallel_time(q, params, rank.forward, rank.backward_input + rank.backward_weight);
    const double optimizer = optimizer_time(q, params);
    if (dp + optimizer > after) {
      after = dp + optimizer;
      step.dp = dp;
      step.optimizer = optimizer;
    }
  }
  const double k = real(q.micros());
  const PipelineTime pipeline =
      pipeline_time(q.schedule, ranks, q.micros(), q.chunks, times.front().front().hop);
  step.tp = k * tp;
  step.compute = k * (slowest - tp);
  step.bubble = std::max(0.0, pipeline.total - pipeline.hops - k * slowest);
  step.pp = pipeline.hops;
  if (q.pp() > 1 && q.model.tied && q.schedule != "zb-v") {
    // Embedding and head are one parameter on two ranks.
    step.pp += collective_time(q.hardware, Collective::all_reduce, tied_bytes(q), 2,
                               stages_share_node(q) ? 2 : 1);
  }
  return step;
}

}  // namespace tessera::planner
