#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

void add_row(Traffic& traffic, Axis axis, std::string what, double calls, double bytes) {
  if (bytes <= 0) return;
  traffic.sent[axis] += bytes;
  traffic.rows.push_back({axis, std::move(what), calls, bytes});
}

std::string compression_text(const RunConfig& q) {
  return q.travel() != q.layout.grad ? str(" in ", name(q.grad_compression)) : "";
}

void add_dp(Traffic& traffic, const RunConfig& q) {
  if (!q.averages_gradients()) return;
  const SentParams params = most_sent_params(q);
  const auto of = [&](ReducePolicy policy) { return sent_along_dp(q, params, policy); };
  const DataParallelTraffic sent = of(q.policy());
  const bool each = q.policy() == ReducePolicy::each;
  const double k = real(q.micros());
  add_row(traffic, Axis::dp_shard,
          (q.zero == 0 ? "all-reduce of gradients" : "reduce-scatter of gradients") +
              compression_text(q),
          each ? k : 1, sent.reduce);
  add_row(traffic, Axis::dp_shard,
          q.zero < 3 ? "all-gather of updated parameters" : "all-gather of parameters",
          q.zero < 3 ? 1 : k * (q.keep_params ? 1 : 2), sent.gather);
  add_row(traffic, Axis::dp_replicate,
          "all-reduce of gradient shards over replicas" + compression_text(q), each ? k : 1,
          sent.replicate);
  traffic.dp_each = of(ReducePolicy::each).total();
  traffic.dp_last = of(ReducePolicy::last).total();
}

// Returns whether a chunk next to chunk c of a rank has this stage. If a rank has two stages in
// sequence, they are in chunks next to each other.
bool is_beside(const RunConfig& q, int stage, int rank, int c) {
  return (c > 0 && stage_of(q, rank, c - 1) == stage) ||
         (c + 1 < q.chunks && stage_of(q, rank, c + 1) == stage);
}

// Number of sends of a rank to other ranks for each micro-batch.
struct Hops {
  double forward = 0, backward = 0;
};
Hops hops_of(const RunConfig& q, int rank) {
  Hops hops;
  if (!q.pipelined()) return hops;
  for (int c = 0; c < q.chunks; ++c) {
    const int stage = stage_of(q, rank, c);
    if (stage < q.stages() - 1 && !is_beside(q, stage + 1, rank, c)) ++hops.forward;
    if (stage > 0 && !is_beside(q, stage - 1, rank, c)) ++hops.backward;
  }
  return hops;
}

// Returns what the operations of all chunks on a rank send along an axis for a micro-batch.
OperationTraffic operations_of(const RunConfig& q, const std::vector<StageLayers>& chunks,
                               Axis axis) {
  ProgramInput in = program_input(q);
  OperationTraffic sent;
  for (const StageLayers& chunk : chunks) {
    in.layers = chunk.layers;
    in.embedding = chunk.embedding;
    in.head = chunk.head;
    in.dense = chunk.dense;
    const OperationTraffic of_chunk = operation_traffic(in, axis);
    for (std::size_t row = 0; row < kSentRows; ++row) {
      sent.by_row[row] += of_chunk.by_row[row];
      sent.calls[row] += of_chunk.calls[row];
    }
  }
  return sent;
}

// Adds the traffic of the layers on this rank: [Note: tensor-parallel traffic].
void add_tp(Traffic& traffic, const RunConfig& q, const std::vector<StageLayers>& chunks,
            int rank) {
  const OperationTraffic sent = operations_of(q, chunks, Axis::tp);
  double layers = 0, heads = 0;
  for (const StageLayers& chunk : chunks) {
    layers += real(chunk.layers);
    heads += chunk.head ? 1 : 0;
  }
  const double k = real(q.micros());
  const auto add = [&](std::string what, double calls, double bytes) {
    add_row(traffic, Axis::tp, std::move(what), k * calls, k * bytes);
  };
  const auto of = [&](Sent row) { return sent.of(row); };
  const std::string kind = q.sequence_ranks() > 1 ? "reduce-scatter + all-gather" : "all-reduce";
  add(kind + " of activations", (q.recompute == Recompute::full ? 6 : 4) * layers,
      of(Sent::layers));
  add(kind + " of embeddings", 1, of(Sent::embedding));
  add(kind + " of the head's input gradient", 1, of(Sent::head));
  add("all-reduce in the loss: maximum, sum, target", 3, of(Sent::loss));
  add("all-reduce of the gradients of norms", layers + heads, of(Sent::norms));
  add("all-reduce of the gradients of shared kv-heads", layers, of(Sent::shared));
  add("all-reduce of the gradients of routers", sent.calls_of(Sent::expert_weights),
      of(Sent::expert_weights));
  add("all-reduce of the gradients of adapters", layers, of(Sent::adapters));
  // A rank that sends to a neighbor also receives from it.
  const Hops hops = hops_of(q, rank);
  const double count = hops.forward + hops.backward;
  add("all-gather of slices between stages", count, count * (hop_slices(q) - 1) * hop_bytes(q));
}

using SentRow = std::pair<const char*, Sent>;
// Attention: [Note: ring and ulysses].
constexpr SentRow kContextRows[] = {
    {"ring of keys and values", Sent::ring},
    {"ring of their gradients in fp32", Sent::ring_gradients},
    {"all-to-all of queries, keys and values", Sent::exchange_qkv},
    {"all-to-all of the results of attention", Sent::exchange_result}};
// Rows between experts: [Note: operations of experts].
constexpr SentRow kExpertRows[] = {{"all-to-all of tokens to their experts", Sent::to_experts},
                                   {"all-to-all of the results of experts", Sent::from_experts},
                                   {"all-to-all of the weights of experts", Sent::expert_weights}};

// Adds the traffic of a rank's operations along an axis.
void add_operations(Traffic& traffic, const RunConfig& q, const std::vector<StageLayers>& chunks,
                    Axis axis, std::span<const SentRow> rows) {
  const OperationTraffic sent = operations_of(q, chunks, axis);
  const double k = real(q.micros());
  for (const auto& [what, row] : rows) {
    add_row(traffic, axis, what, k * sent.calls_of(row), k * sent.of(row));
  }
}

void add_pp(Traffic& traffic, const RunConfig& q, int rank) {
  const auto [forward, backward] = hops_of(q, rank);
  const double k = real(q.micros());
  const double bytes = hop_bytes(q);
  add_row(traffic, Axis::pp, "send of activations", forward * k, forward * k * bytes);
  add_row(traffic, Axis::pp, "send of gradients", backward * k, backward * k * bytes);
  // A tied embedding and head are one parameter on two ranks, which sum its gradients.
  const bool first = stage_of(q, rank, 0) == 0;
  const bool last = stage_of(q, rank, q.chunks - 1) == q.stages() - 1;
  if (tied_bytes(q) > 0 && first != last) {
    add_row(traffic, Axis::pp, "all-reduce of the tied embedding's gradient", 1,
            tied_bytes(q));  // a ring over two ranks sends the size of the buffer
  }
}

// Adds the traffic of a pipeline rank along an axis of several ranks.
void add_along(Axis axis, Traffic& traffic, const RunConfig& q,
               const std::vector<StageLayers>& chunks, int rank) {
  switch (axis) {
    case Axis::tp: return add_tp(traffic, q, chunks, rank);
    case Axis::cp: return add_operations(traffic, q, chunks, axis, kContextRows);
    case Axis::ep: return add_operations(traffic, q, chunks, axis, kExpertRows);
    case Axis::pp: return add_pp(traffic, q, rank);
    case Axis::dp_shard:
    case Axis::dp_replicate: return;  // add_dp() adds that of the rank that sends most
  }
}

}  // namespace

// For each axis, reports the rank that sends most along it, so different axes may describe
// different ranks.
Traffic traffic_of(const RunConfig& q) {
  const auto shares = chunk_layers(q);
  Traffic most;
  PerAxis<std::vector<TrafficRow>> rows;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (q.state_only()) continue;
    Traffic mine;
    for (const Axis axis : kAllAxes) {
      if (q.axes.size(axis) > 1) add_along(axis, mine, q, shares[r], static_cast<int>(r));
    }
    for (const Axis axis : kAllAxes) {
      if (mine.sent[axis] <= most.sent[axis]) continue;
      most.sent[axis] = mine.sent[axis];
      rows[axis] = mine.rows;
      std::erase_if(rows[axis], [&](const TrafficRow& row) { return row.axis != axis; });
    }
  }
  add_dp(most, q);
  for (const std::vector<TrafficRow>& each : rows) {
    most.rows.insert(most.rows.end(), each.begin(), each.end());
  }
  return most;
}

}  // namespace tessera::planner
