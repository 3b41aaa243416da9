// Topic of explain: context parallelism. Who holds which tokens and keys when, and what it costs.

#include <algorithm>

#include "tessera/cli/explain_topics.h"
#include "tessera/core/errors.h"
#include "tessera/core/sequence_part.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"

namespace tessera::cli {
namespace {

using planner::real;
using planner::RunConfig;

constexpr int kTableRanks = 8, kTableSteps = 8;

// Attention work of a part's queries with the keys of another part, in squares of a chunk: 1 for a
// chunk of earlier keys, 1/2 for its own.
double chunk_work(const SequencePart& queries, const SequencePart& keys) {
  double sum = 0;
  for (int i = 0; i < queries.chunks(); ++i) {
    for (int j = 0; j < keys.chunks(); ++j) {
      const int q = queries.chunk(i), k = keys.chunk(j);
      sum += k < q ? 1 : k == q ? 0.5 : 0;
    }
  }
  return sum;
}

std::string squares(double value) {
  return value == static_cast<std::int64_t>(value) ? str(static_cast<std::int64_t>(value))
                                                   : fixed(value, 1);
}

// One row per rank: its chunks, and its work in each step of the ring.
std::string zigzag_table(int cp) {
  const int ranks = std::min(cp, kTableRanks), steps = std::min(cp, kTableSteps);
  Table table("rl" + std::string(static_cast<std::size_t>(steps) + 1, 'r'));
  std::vector<std::string> names = {"rank", "chunks"};
  for (int step = 0; step < steps; ++step) names.push_back(str("step ", step));
  names.emplace_back("all steps");
  table.row(names);
  for (int rank = 0; rank < ranks; ++rank) {
    const SequencePart own{rank, cp};
    std::vector<std::string> cells = {str(rank), str(own.chunk(0), ", ", own.chunk(1))};
    double all = 0;
    for (int step = 0; step < cp; ++step) {
      const SequencePart block{(rank - step + cp) % cp, cp};  // blocks go from rank to rank + 1
      const double each = chunk_work(own, block);
      all += each;
      if (step < steps) {
        cells.push_back(str(step == 0 ? "own" : str("of ", block.index), ": ", squares(each)));
      }
    }
    cells.push_back(squares(all));
    table.row(cells);
  }
  std::string text = table.text();
  if (cp > kTableRanks) text += str("  … ", cp - kTableRanks, " more ranks, all alike\n");
  return text;
}

// Returns the bytes that one layer sends for a micro-batch, or the reason why it cannot.
std::string kind_text(const RunConfig& q, ContextKind kind) {
  RunConfig one = q;
  one.recompute = Recompute::none;
  try {
    one.cp_kind = context_kind_for(q.model, kind, q.tp(), q.cp());
  } catch (const UsageError& error) {
    return str("  not possible: ", error.what(), "\n");
  }
  planner::ProgramInput in = program_input(one);
  in.layers = 1, in.embedding = in.head = false;
  const planner::OperationTraffic sent = operation_traffic(in, Axis::cp);
  return str("  forward ", planner::size(sent.forward), ", backward ", planner::size(sent.backward),
             "; with --recompute full ", planner::size(2 * sent.forward + sent.backward),
             " in all\n  a layer keeps ", planner::size(layer_activations(one)),
             " a micro-batch\n");
}

}  // namespace

std::string explain_context(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  if (q.state_only()) {
    throw UsageError(Flag("params"),
                     "does not define heads; use --model, or --layers --hidden --heads");
  }
  const int cp = q.cp();
  if (cp == 1) return "cp 1 shares no sequence and sends nothing. Use --cp 2 or more.\n";
  const std::int64_t tokens = q.rank_tokens(), chunk = tokens / 2;
  // Parts in order: the last one sees all parts before it.
  const double balanced = 2.0 * cp, longest = 4 * (cp - 0.5);
  const std::int64_t heads = q.model.heads / q.tp();
  const std::int64_t kv = std::max<std::int64_t>(1, q.model.kv_heads / q.tp());
  const std::int64_t d = q.model.head_dim(), e = planner::element_bytes(q);
  const std::int64_t rows = q.micro_batch * tokens, sent_kv = std::max<std::int64_t>(kv, cp);
  RunConfig whole = q;
  whole.axes.set(Axis::cp, 1);
  const double kept = layer_activations(q), before = layer_activations(whole);
  const double step = a.plan.time.step(), waits = a.plan.time.comm[Axis::cp];
  return str(
      "Zig-zag: a sequence of ", format_grouped(tokens * cp), " tokens",
      tokens * cp == q.seq ? "" : str(" (padded from ", format_grouped(q.seq), ")"),
      " is cut into ", 2 * cp, " chunks of ", format_grouped(chunk), ". Rank r holds chunks r and ",
      2 * cp - 1,
      " - r.\nIn causal attention a chunk sees itself (work 1/2) and all before it (1 each).\n\n",
      zigzag_table(cp),
      "\nAll ranks have equal work in every step. With parts in order, the last "
      "rank would have ",
      squares(longest), " and\nthe others wait for it: ", fixed(longest / balanced, 2),
      " times as long.\n\nMemory: a layer keeps ", planner::size(kept),
      " a micro-batch on a rank, and ", planner::size(before),
      " without cp: ", fixed(before / kept, 2),
      " times as much\n\nring: keys and values of a rank pass through the "
      "others in cp - 1 = ",
      cp - 1, " messages of\n  B·T·2·kv·d·e = ", q.micro_batch, " · ", tokens, " · 2 · ", kv, " · ",
      d, " · ", e, " B = ", planner::size(real(rows * 2 * kv * d * e)),
      "; backward sends them again, with their gradients in fp32\n",
      kind_text(q, ContextKind::ring),
      "ulysses: all-to-alls of queries, keys, values and results "
      "send\n  (cp-1)/cp · B·T·(h + 2·max(kv, cp) + h)·d·e = ",
      fixed(1 - 1.0 / cp, 4), " · ", q.micro_batch, " · ", tokens, " · ", 2 * heads + 2 * sent_kv,
      " · ", d, " · ", e, " B, and as much in backward\n", kind_text(q, ContextKind::ulysses),
      "\nOn ", q.hardware.name, " the plan with ", name(q.cp_kind), " counts ",
      planner::size(a.plan.traffic.sent[Axis::cp]), " sent along cp and ", format_time(waits),
      " of waiting in a step of ", format_time(step), " (",
      planner::percent(step > 0 ? waits / step : 0),
      ").\nA message of the ring is hidden while attention of a block, 1/", cp,
      " of the whole, takes longer. An\nall-to-all is never hidden.\n");
}

}  // namespace tessera::cli
