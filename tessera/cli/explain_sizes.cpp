// Topics of explain: the time of tensor-parallel collectives, and the largest models that fit.

#include <algorithm>
#include <cmath>

#include "tessera/cli/explain_topics.h"
#include "tessera/core/errors.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"

namespace tessera::cli {

std::string explain_tensor(const ExplainArguments& a) {
  const planner::RunConfig& q = a.plan.question;
  if (q.state_only()) {
    throw UsageError(Flag("params"),
                     "does not define b·s·h; use --model, or --layers --hidden --heads");
  }
  if (q.tp() == 1) {
    return "tp 1 shards no matrix and sends nothing. Use --tp 2 or more.\n";
  }
  const double values =
      planner::real(q.micro_batch) * planner::real(q.rank_tokens()) * planner::real(q.model.hidden);
  const double e = planner::element_bytes(q), bytes = values * e;
  const int each = q.recompute == Recompute::full ? 6 : 4;
  const double count = planner::real(q.model.layers) / q.pp() * each * planner::real(q.micros());
  const double one = planner::ring_all_reduce_time(bytes, q.tp(), a.bandwidth, a.latency);
  const double sent = planner::ring_all_reduce_bytes(bytes, q.tp());
  Table table("lrrr");
  table.row({"bandwidth", "one", "a step", "of the step"});
  const double step = a.plan.time.step();
  const double rest = std::max(0.0, step - a.plan.time.comm[Axis::tp]);
  for (const double times : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    const double rate = a.bandwidth * times;
    const double each_one = planner::ring_all_reduce_time(bytes, q.tp(), rate, a.latency);
    table.row({format_rate(rate), format_time(each_one), format_time(each_one * count),
               planner::percent(each_one * count / (rest + each_one * count))});
  }
  return str(
      "An all-reduce along tp carries activations, b·s·h · bytes, not weights:\n  ", q.micro_batch,
      " · ", q.rank_tokens(), " · ", q.model.hidden, " · ", e, " B = ", planner::size(bytes),
      "\n  T = 2(t-1)/t · D/B + 2(t-1)·α = ", fixed(2.0 * (q.tp() - 1) / q.tp(), 4), " · ",
      planner::size(bytes), " / ", format_rate(a.bandwidth), " + ", 2 * (q.tp() - 1), " · ",
      format_time(a.latency), " = ", format_time(one), "\n", each, " a layer and micro-batch (",
      each == 6 ? "forward, its recomputation, backward: two each" : "two forward, two backward",
      "): ", format_grouped(std::llround(count)), " a step, ", planner::size(sent * count),
      " sent, ", format_time(one * count),
      "\nThe products of the layers depend on them: nothing hides them, unless products are "
      "split for it.\n\nOther links\n",
      table.text(), "\nOn ", q.hardware.name, " the plan counts ",
      planner::size(a.plan.traffic.sent[Axis::tp]), " (with embedding, head and loss) and ",
      format_time(a.plan.time.comm[Axis::tp]), " of ", format_time(step), " a step.\n");
}

std::string explain_limits(const ExplainArguments& a) {
  const planner::RunConfig& q = a.plan.question;
  const double memory = a.memory > 0 ? static_cast<double>(a.memory) : usable_memory(q.hardware);
  const std::string device =
      a.memory > 0 ? planner::size(memory) : str(planner::size(memory), " of ", q.hardware.name);
  const double plain = planner::largest_model(q.layout, 0, 1, memory);
  const auto count = [](double params) {
    return format_count(std::llround(std::min(params, 9e18)));
  };
  Table table("lrrrr");
  const int most = std::max(q.dp(), 8);
  table.row({"state alone", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"});
  for (const int dp : {1, 2, 4, 8, 16, 64, 256}) {
    if (dp > most && dp != 64) continue;
    std::vector<std::string> row = {str("dp ", dp)};
    for (int stage = 0; stage <= 3; ++stage) {
      row.push_back(count(planner::largest_model(q.layout, stage, dp, memory)));
    }
    table.row(row);
  }
  std::string text =
      str("Plain data parallelism keeps ", q.layout.total(),
          " bytes a parameter on every GPU "
          "(layout ",
          q.layout.name, " = ", q.layout.param, " + ", q.layout.grad, " + ", q.layout.optimizer(),
          "), however many there are:\n  ", device, " / ", q.layout.total(), " B = ", count(plain),
          " parameters, before any activation\n\n", table.text());
  if (q.state_only()) return text;
  planner::RunConfig with = q;
  if (a.memory > 0) with.hardware.memory = memory, with.hardware.usable = 1;
  const planner::ModelLimits limits = planner::largest_models(with);
  Table grown("rrrrrr");
  grown.row({"ZeRO", "dp", "parameters", "layers", "hidden", "memory"});
  for (const planner::ModelLimit& each : limits.rows) {
    if (each.dp != 1 && each.dp != 8 && each.dp != q.dp()) continue;
    if (each.dp == 1 && each.zero > 0) continue;
    const bool any = each.params > 0;
    grown.row({str(each.zero), str(each.dp), any ? count(each.params) : "none",
               any ? str(each.model.layers) : "-", any ? str(each.model.hidden) : "-",
               any ? planner::size(each.memory) : "-"});
  }
  return str(text, "\nWith activations, buffers and temporaries: models of the form of ",
             q.model.name.empty() ? "yours" : q.model.name, ", seq ", q.seq, ", micro-batch ",
             q.micro_batch, ", recomputed: ", name(q.recompute), "\n", grown.text(),
             "  tessera plan --max-model shows all of them\n");
}

}  // namespace tessera::cli
