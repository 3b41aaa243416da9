#include "tessera/planner/limits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/planner/neighbors.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

// Returns the largest n in 0 … most for which `edited` returns a configuration that fits. A larger
// n must need more memory.
template <typename Edited>
std::int64_t largest_that_fits(std::int64_t most, const Edited& edited) {
  const auto fits = [&](std::int64_t n) { return Candidate::of(edited(n)).fits; };
  std::int64_t good = 0, bad = 1;
  while (bad <= most && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  bad = std::min(bad, most + 1);
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

RunConfig with(const RunConfig& q, int zero, int dp) {
  RunConfig other = q.at_stage(zero);
  if (dp % other.replicas() != 0) other.axes.set_given(Axis::dp_replicate, 1);
  if (zero != q.zero) other.grad_reduce.reset();
  other.axes.set_dp(dp);
  // The largest number of expert-parallel ranks that divides fewer ranks.
  other.axes.set(Axis::ep, std::gcd(q.ep(), other.axes.shards()));
  other.gpus = other.nodes = 0;
  if (other.gather == Gather::alias) other.gather.reset();  // more ranks may span more hosts
  other.global_batch = 0;
  return other;
}

template <typename Limits, typename Find>
Limits for_all(const RunConfig& q, const Find& find) {
  Limits limits;
  std::vector<int> degrees = {q.dp()};
  for (int dp = 1; dp <= std::max(q.dp(), q.per_node); dp *= 2) {
    if (dp != q.dp()) degrees.push_back(dp);
  }
  std::erase_if(degrees, [&](int dp) { return dp * q.cp() % q.ep() != 0; });
  std::sort(degrees.begin(), degrees.end());
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int dp : degrees) {
      limits.rows.push_back(find(with(q, zero, dp)));
      if (zero == q.zero && dp == q.dp()) limits.asked = limits.rows.back();
    }
  }
  return limits;
}

BatchLimit largest_batch(RunConfig q) {
  // Accumulation adds time, not memory: use one micro-batch, or enough to fill the pipeline.
  q.grad_accum = q.pipelined() ? std::max<std::int64_t>(q.grad_accum, q.pp()) : q.grad_accum;
  const auto edited = [&](std::int64_t b) {
    RunConfig other = q;
    other.micro_batch = b;
    return other;
  };
  BatchLimit limit{q.zero, q.dp()};
  limit.micro_batch = largest_that_fits(1'000'000'000 / (q.dp() * q.grad_accum), edited);
  limit.global_batch = limit.micro_batch * q.dp() * q.grad_accum;
  limit.memory = Candidate::of(edited(std::max<std::int64_t>(1, limit.micro_batch))).memory;
  return limit;
}

// Returns the base with n steps of heads, where a step is the smallest number that tp and the
// groups of KV heads allow.
ModelShape grown(const RunConfig& q, std::int64_t n) {
  const ModelShape& base = q.model;
  const std::int64_t group = base.heads / base.kv_heads;
  const std::int64_t step = q.tp() * group;
  ModelShape m = base;
  m.name.clear();
  m.heads = n * step;
  m.kv_heads = m.heads / group;
  m.hidden = base.hidden * m.heads / base.heads;
  m.ffn = m.hidden * base.ffn / base.hidden;
  const double layers = real(base.layers) * real(m.hidden) / real(base.hidden);
  m.layers = std::max<std::int64_t>(std::llround(layers), q.stages());
  return m;
}

ModelLimit largest_model_for(const RunConfig& q) {
  ModelLimit limit;
  limit.zero = q.zero;
  limit.dp = q.dp();
  if (q.state_only()) {
    const double each = state_bytes(q.layout, q.zero, 1, q.shards(), q.policy()).total();
    limit.params = usable_memory(q.hardware) / each * q.tp() * q.pp();
    limit.memory = usable_memory(q.hardware);
    return limit;
  }
  const auto edited = [&](std::int64_t n) {
    RunConfig other = q;
    other.model = grown(q, n);
    return other;
  };
  // Limits of check(): hidden up to a million, layers up to 1e5.
  const ModelShape one = grown(q, 1);
  const std::int64_t most = std::min<std::int64_t>(
      1'000'000 / one.hidden,
      static_cast<std::int64_t>(1e5 / (real(q.model.layers) * real(one.hidden)) *
                                real(q.model.hidden)));
  const std::int64_t n = largest_that_fits(std::max<std::int64_t>(most, 1), edited);
  if (n == 0) return limit;
  limit.model = grown(q, n);
  limit.params = real(limit.model.params());
  limit.memory = Candidate::of(edited(n)).memory;
  return limit;
}

}  // namespace

BatchLimits largest_batches(const RunConfig& q) {
  if (q.state_only()) {
    throw UsageError(Flag("max-batch"),
                     "requires the shape of a model (--model, or --layers, --hidden and --heads); "
                     "--params gives only its size");
  }
  return for_all<BatchLimits>(q, largest_batch);
}

ModelLimits largest_models(const RunConfig& q) {
  return for_all<ModelLimits>(q, largest_model_for);
}

}  // namespace tessera::planner
