// Topic of explain: mixtures of experts. Parameters, rows and messages of the experts, memory by
// ep, capacity and imbalance.

#include <cmath>

#include "tessera/cli/experts_report.h"
#include "tessera/cli/explain_topics.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/program_builder.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"

namespace tessera::cli {
namespace {

using planner::ExpertCosts;
using planner::real;
using planner::RunConfig;

std::string integer(double value) { return format_grouped(std::llround(value)); }
std::string grouped(std::int64_t value) { return format_grouped(value); }

// All parameters, and those that one token uses.
std::string parameters_text(const RunConfig& q, const ExpertCosts& costs) {
  const Experts& e = q.model.experts;
  const double each =
      costs.in_experts / (real(q.model.expert_layers()) * real(e.count));  // of one expert
  const double others = costs.parameters - costs.in_experts;
  const auto line = [&](const char* name, std::int64_t experts, double sum) {
    return str("  ", name, grouped(q.model.expert_layers()), " layers · ", experts,
               experts == 1 ? " expert · " : " experts · ", integer(each), " + ", integer(others),
               " = ", integer(sum), "\n");
  };
  return str(
      "Parameters: an expert has ", q.model.swiglu ? "3" : "2",
      "·C·F = ", q.model.swiglu ? "3" : "2", " · ", q.model.hidden, " · ", e.width,
      q.model.biases.mlp ? ", and biases" : "", " = ", integer(each), "\n",
      line("total   ", e.count, costs.parameters), line("active  ", e.per_token, costs.active),
      "  A token uses ", planner::percent(costs.active / costs.parameters),
      " of the parameters: they decide the arithmetic of a step, and all of them its memory.\n");
}

// Rows of each expert, with capacity and imbalance.
std::string rows_text(const RunConfig& q, const ExpertCosts& costs) {
  const Experts& e = q.model.experts;
  const double tokens = real(q.micro_batch * q.rank_tokens());
  std::string text =
      str("\nRows: a rank routes N·k = ", integer(tokens), " · ", e.per_token, " = ",
          integer(costs.routed), " rows in a layer and micro-batch. ep ", q.ep(),
          q.ep() == 1 ? " rank has" : " ranks have", " ", e.count,
          " experts:\n  an expert receives N·k·ep/E = ", integer(costs.routed), " · ", q.ep(),
          " / ", e.count, " = ", integer(costs.mean), " on average\n  the busiest rank computes ",
          costs.on_a_rank, " · ", integer(costs.mean), " · ", fixed(q.expert_load(), 2), " = ",
          integer(costs.busiest),
          ", where --expert-imbalance is the largest load of a rank over the mean\n");
  if (e.capacity > 0) {
    return text + str("  --expert-capacity ", e.capacity, ": an expert accepts ", e.capacity, " · ",
                      integer(costs.mean), " = ", integer(e.capacity * costs.mean),
                      " rows; the busiest rank drops ", planner::percent(costs.dropped), "\n");
  }
  return text + str("  --expert-capacity 1.25 would accept 1.25 · ", integer(costs.mean), " = ",
                    integer(1.25 * costs.mean), " rows of an expert, and drop the rest\n");
}

// Describes the bytes of the all-to-alls of one layer, and their time in a step.
std::string exchange_text(const RunConfig& q, const planner::Plan& plan, const ExpertCosts& costs) {
  if (q.ep() == 1) {
    return "\nExchange: with ep 1 a rank has all experts, and no row leaves it. Use --ep 2 or "
           "more.\n";
  }
  const planner::ExpertExchange& x = costs.exchange;
  const double capacity = q.model.experts.capacity;
  const double routed = costs.routed * (capacity > 0 && capacity < 1 ? capacity : 1);
  const double part = 1 - 1.0 / q.ep();
  const std::int64_t h = q.model.hidden, e = planner::element_bytes(q);
  const double there = part * routed * real(h * e), weights = part * routed * 4;
  const double step = plan.time.step();
  return str(
      "\nExchange: all-to-alls of a layer and micro-batch, ",
      x.crosses_hosts ? "across hosts" : "inside a host",
      "\n  rows there, or results back: (ep-1)/ep · N·k·C·e = ", fixed(part, 4), " · ",
      integer(routed), " · ", h, " · ", e, " B = ", planner::size(there),
      "\n  weights in fp32: ", fixed(part, 4), " · ", integer(routed),
      " · 4 B = ", planner::size(weights),
      "\n  forward and backward: 4 · rows + 2 · weights = ", planner::size(4 * there + 2 * weights),
      q.recompute == Recompute::full ? "; recomputation sends those of forward again" : "",
      "\n  a step sends ", planner::size(x.bytes), " in ", integer(x.calls),
      " all-to-alls, which take ", format_time(x.seconds), " of ", format_time(step), " (",
      planner::percent(step > 0 ? x.seconds / step : 0), ") on ", q.hardware.name,
      "\nNothing hides an all-to-all: the experts wait for their rows. "
      "The busiest rank receives the most, and\nthe others wait for it.\n");
}

}  // namespace

std::string explain_experts(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  if (q.state_only() || !q.model.experts.any()) {
    return "The model has no experts. Use --model mixtral-8x7b, or --experts 8.\n";
  }
  const ExpertCosts costs = planner::expert_costs(a.plan);
  const Experts& e = q.model.experts;
  return str("Mixture of experts: in ", q.model.expert_layers(), " of ", q.model.layers,
             " layers a router selects k = ", e.per_token, " of E = ", e.count,
             " MLPs of width F = ", e.width, " for each token",
             e.shared_width > 0 ? str(", beside a shared one of width ", e.shared_width) : "",
             ".\n\n", parameters_text(q, costs), rows_text(q, costs),
             exchange_text(q, a.plan, costs), experts_table(a.plan),
             "ep cuts the experts of a layer over ranks that shard state (dp · cp). The state of "
             "an expert is\nsharded over the dp · cp / ep = ",
             q.expert_shards(), q.expert_shards() == 1 ? " rank" : " ranks",
             " with the same experts, as --zero ", q.zero, " does.\n");
}

}  // namespace tessera::cli
