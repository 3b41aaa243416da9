#include "tessera/planner/context_costs.h"

#include <algorithm>
#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/core/sequence_part.h"
#include "tessera/core/text.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

double chunk_work(const std::vector<int>& queries, const std::vector<int>& keys) {
  double sum = 0;
  for (const int q : queries) {
    for (const int k : keys) sum += k < q ? 1 : k == q ? 0.5 : 0;
  }
  return sum;
}

void set_formula(ContextCost& cost, const RunConfig& q) {
  const auto [heads, kv] = heads_on_rank(q.model, q.axes);
  const std::int64_t cp = q.cp(), d = q.model.head_dim(), e = element_bytes(q);
  const std::string rows = str(q.micro_batch, " · ", q.rank_tokens(), " · ");
  if (cost.kind == ContextKind::ring) {
    cost.message = real(q.micro_batch) * real(q.rank_tokens()) * 2 * real(kv) * real(d) * real(e);
    cost.formula = str("B·T·2·kv·d·e = ", rows, "2 · ", kv, " · ", d, " · ", e, " B");
  } else {
    cost.formula = str("(cp-1)/cp · B·T·(h + 2·max(kv, cp) + h)·d·e = ", fixed(1 - 1 / real(cp), 4),
                       " · ", rows, 2 * heads + 2 * std::max(kv, cp), " · ", d, " · ", e, " B");
  }
}

// Returns the traffic along cp of one layer.
OperationTraffic layer_traffic(const RunConfig& q) {
  ProgramInput in = program_input(q);
  in.layers = 1, in.embedding = in.head = false;
  return operation_traffic(in, Axis::cp);
}

}  // namespace

std::vector<int> chunks_of_rank(ChunkOrder order, int rank, int cp) {
  const SequencePart part{rank, cp};
  std::vector<int> chunks;
  for (int i = 0; i < part.chunks(); ++i) {
    chunks.push_back(order == ChunkOrder::zigzag ? part.chunk(i) : part.chunks() * rank + i);
  }
  return chunks;
}

int owner_of_keys(int rank, int step, int cp) { return (rank - step + cp) % cp; }

double attention_work(ChunkOrder order, int cp, int rank, int step) {
  return chunk_work(chunks_of_rank(order, rank, cp),
                    chunks_of_rank(order, owner_of_keys(rank, step, cp), cp));
}

double attention_work(ChunkOrder order, int cp, int rank) {
  double sum = 0;
  for (int step = 0; step < cp; ++step) sum += attention_work(order, cp, rank, step);
  return sum;
}

ContextKind context_kind(const RunConfig& q, ContextKind asked, const Axes& axes) {
  const bool on_gpu = q.fused_activations() || (q.gpu.value_or(false) && q.model.attention_cap > 0);
  return context_kind_for(q.model, asked, axes, on_gpu);
}

ContextCost context_cost(const RunConfig& resolved, ContextKind kind) {
  if (resolved.state_only()) {
    throw UsageError(Flag("params"),
                     "does not define heads; use --model, or --layers --hidden --heads");
  }
  ContextCost cost;
  cost.kind = kind;
  set_formula(cost, resolved);
  cost.question = resolved;
  RunConfig& q = cost.question;
  try {
    q.cp_kind = context_kind(q, kind, q.axes);
  } catch (const UsageError& error) {
    cost.refused = error.what();
    return cost;
  }
  const bool exchanges = kind == ContextKind::ulysses;
  cost.heads = heads_on_rank(q.model, q.axes).all / (exchanges ? q.cp() : 1);
  cost.tokens = q.rank_tokens() * (exchanges ? q.cp() : 1);
  cost.sent = layer_traffic(q);
  RunConfig again = q;
  again.recompute = Recompute::full;
  cost.sent_with_full_recompute = layer_traffic(again).total();
  cost.kept = layer_activations(q);
  return cost;
}

std::int64_t RunConfig::rank_tokens() const {
  return cp() == 1 ? seq : padded_tokens(seq, cp(), sequence_ranks()) / cp();
}

RunConfig without_context(const RunConfig& resolved) {
  RunConfig whole = resolved;
  whole.axes.set(Axis::cp, 1);
  whole.axes.set(Axis::ep, std::gcd(resolved.ep(), whole.shards()));
  return whole;
}

}  // namespace tessera::planner
