// Topic of explain: context parallelism. Who holds which tokens and keys when, and what it costs.

#include <algorithm>

#include "tessera/cli/explain_topics.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/context_costs.h"
#include "tessera/planner/rank_load.h"

namespace tessera::cli {
namespace {

using planner::ChunkOrder;
using planner::ContextCost;
using planner::RunConfig;

constexpr int kTableRanks = 8, kTableSteps = 8;

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
    const std::vector<int> chunks = planner::chunks_of_rank(ChunkOrder::zigzag, rank, cp);
    std::vector<std::string> cells = {str(rank), str(chunks[0], ", ", chunks[1])};
    for (int step = 0; step < steps; ++step) {
      const std::string keys =
          step == 0 ? "own" : str("of ", planner::owner_of_keys(rank, step, cp));
      cells.push_back(str(keys, ": ", squares(attention_work(ChunkOrder::zigzag, cp, rank, step))));
    }
    cells.push_back(squares(attention_work(ChunkOrder::zigzag, cp, rank)));
    table.row(cells);
  }
  std::string text = table.text();
  if (cp > kTableRanks) text += str("  … ", cp - kTableRanks, " more ranks, all alike\n");
  return text;
}

// Returns the bytes that one layer sends for a micro-batch, or the reason why it cannot.
std::string kind_text(const ContextCost& cost) {
  if (!cost.refused.empty()) return str("  not possible: ", cost.refused, "\n");
  return str("  forward ", planner::size(cost.sent.forward), ", backward ",
             planner::size(cost.sent.backward), "; with --recompute full ",
             planner::size(cost.sent_with_full_recompute), " in all\n  a layer keeps ",
             planner::size(cost.kept), " a micro-batch\n");
}

}  // namespace

std::string explain_context(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  const ContextCost ring = planner::context_cost(q, ContextKind::ring);
  const ContextCost ulysses = planner::context_cost(q, ContextKind::ulysses);
  const int cp = q.cp();
  if (cp == 1) return "cp 1 shares no sequence and sends nothing. Use --cp 2 or more.\n";
  const std::int64_t tokens = q.rank_tokens(), chunk = tokens / 2;
  // Without zig-zag the last rank has the most work: it sees the keys of all others.
  const double balanced = attention_work(ChunkOrder::zigzag, cp, cp - 1);
  const double longest = attention_work(ChunkOrder::in_order, cp, cp - 1);
  const double kept = layer_activations(q), before = layer_activations(without_context(q));
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
      cp - 1, " messages of\n  ", ring.formula, " = ", planner::size(ring.message),
      "; backward sends them again, with their gradients in fp32\n", kind_text(ring),
      "ulysses: all-to-alls of queries, keys, values and results "
      "send\n  ",
      ulysses.formula, ", and as much in backward\n", kind_text(ulysses), "\nOn ", q.hardware.name,
      " the plan with ", name(q.cp_kind), " counts ", planner::size(a.plan.traffic.sent[Axis::cp]),
      " sent along cp and ", format_time(waits), " of waiting in a step of ", format_time(step),
      " (", planner::percent(step > 0 ? waits / step : 0),
      ").\nA message of the ring is hidden while attention of a block, 1/", cp,
      " of the whole, takes longer, but\nthe last gradients of backward and all-to-alls never "
      "are.\n");
}

}  // namespace tessera::cli
