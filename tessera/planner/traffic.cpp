#include <algorithm>

#include "tessera/planner/formulas.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

void add_row(Traffic& traffic, double& axis, const char* name, std::string what, double calls,
             double bytes) {
  if (bytes <= 0) return;
  axis += bytes;
  traffic.rows.push_back({name, std::move(what), calls, bytes});
}

TrafficQuestion data_parallel(const Question& q, double params, ReducePolicy policy) {
  TrafficQuestion t;
  t.stage = q.zero;
  t.dp = q.dp;
  t.micro_batches = static_cast<int>(q.micros());
  t.param_bytes = params * q.layout.param;
  t.grad_bytes = params * q.layout.grad;
  t.policy = policy;
  t.keep_params = q.keep_params;
  return t;
}

void add_dp(Traffic& traffic, const Question& q, double params) {
  if (q.dp == 1) return;
  const DataParallelTraffic sent = data_parallel_traffic(data_parallel(q, params, q.policy()));
  const bool each = q.policy() == ReducePolicy::each;
  const double k = real(q.micros());
  add_row(traffic, traffic.dp, "dp",
          q.zero == 0 ? "all-reduce of gradients" : "reduce-scatter of gradients", each ? k : 1,
          sent.reduce);
  add_row(traffic, traffic.dp, "dp",
          q.zero < 3 ? "all-gather of updated parameters" : "all-gather of parameters",
          q.zero < 3 ? 1 : k * (q.keep_params ? 1 : 2), sent.gather);
  traffic.dp_each = data_parallel_traffic(data_parallel(q, params, ReducePolicy::each)).total();
  traffic.dp_last = data_parallel_traffic(data_parallel(q, params, ReducePolicy::last)).total();
}

// Column-parallel then row-parallel: an all-reduce in forward and one in backward for each of the
// two pairs of a layer, and the forward ones again where it is recomputed.
void add_tp(Traffic& traffic, const Question& q, const std::vector<StageShare>& chunks) {
  if (q.tp == 1) return;
  double layers = 0;
  bool embedding = false, head = false;
  for (const StageShare& chunk : chunks) {
    layers += real(chunk.layers);
    embedding = embedding || chunk.embedding;
    head = head || chunk.head;
  }
  const double k = real(q.micros()), tokens = real(q.seq) * real(q.micro_batch);
  const double pass = ring_all_reduce_bytes(tokens * real(q.model.hidden) * element_bytes(q), q.tp);
  const std::string kind = q.sequence_parallel ? "reduce-scatter + all-gather" : "all-reduce";
  const double per_layer = q.recompute == Recompute::full ? 6 : 4;
  add_row(traffic, traffic.tp, "tp", kind + " of activations", per_layer * layers * k,
          per_layer * layers * k * pass);
  if (embedding) add_row(traffic, traffic.tp, "tp", kind + " of embeddings", k, k * pass);
  if (head) {
    add_row(traffic, traffic.tp, "tp", kind + " of the head's input gradient", k, k * pass);
    add_row(traffic, traffic.tp, "tp", "all-reduce in the loss: maximum, sum, target", 3 * k,
            3 * k * ring_all_reduce_bytes(4 * tokens, q.tp));
  }
}

void add_pp(Traffic& traffic, const Question& q, int rank) {
  if (q.pp == 1) return;
  const int last = q.pp * q.chunks - 1;
  double forward = 0, backward = 0;  // per micro-batch
  const auto here = [&](int stage) {
    const bool way_up = q.schedule == "zb-v" && stage >= q.pp;
    return (way_up ? last - stage : stage % q.pp) == rank;
  };
  for (int c = 0; c < q.chunks; ++c) {
    const int stage = stage_of(q, rank, c);
    if (stage < last && !here(stage + 1)) ++forward;
    if (stage > 0 && !here(stage - 1)) ++backward;
  }
  const double k = real(q.micros());
  const double bytes = real(q.seq) * real(q.micro_batch) * real(q.model.hidden) * element_bytes(q) /
                       (q.sequence_parallel ? q.tp : 1);
  add_row(traffic, traffic.pp, "pp", "send of activations", forward * k, forward * k * bytes);
  add_row(traffic, traffic.pp, "pp", "send of gradients", backward * k, backward * k * bytes);
  // Embedding and head are one parameter on two ranks: their gradients are summed.
  const bool ends = here(0) != here(last);
  if (q.model.tied && ends) {
    add_row(traffic, traffic.pp, "pp", "all-reduce of the tied embedding's gradient", 1,
            ring_all_reduce_bytes(vocab_params_on_rank(q) * q.layout.grad, 2));
  }
}

}  // namespace

// Each axis is that of the rank which sends most along it, so the axes may be of different ranks.
Traffic traffic_of(const Question& q) {
  const auto shares = stage_shares(q);
  Traffic most;
  double params = 0;
  std::vector<TrafficRow> tp_rows, pp_rows;
  for (int r = 0; r < q.pp; ++r) {
    const auto& chunks = shares[static_cast<std::size_t>(r)];
    params = std::max(params, params_on_rank(q, chunks));
    if (q.state_only()) continue;
    Traffic mine;
    add_tp(mine, q, chunks);
    if (mine.tp > most.tp) {
      most.tp = mine.tp;
      tp_rows = std::move(mine.rows);
    }
    mine.rows.clear();
    add_pp(mine, q, r);
    if (mine.pp > most.pp) {
      most.pp = mine.pp;
      pp_rows = std::move(mine.rows);
    }
  }
  add_dp(most, q, params);
  most.rows.insert(most.rows.end(), tp_rows.begin(), tp_rows.end());
  most.rows.insert(most.rows.end(), pp_rows.begin(), pp_rows.end());
  return most;
}

}  // namespace tessera::planner
