#include "tessera/cli/experts_report.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"

namespace tessera::cli {
namespace {

std::string rounded(double value) { return format_grouped(std::llround(value)); }

}  // namespace

std::string experts_text(const planner::RunConfig& q, const planner::ExpertCosts& costs) {
  const Experts& e = q.model.experts;
  std::string text =
      str("Experts     ", e.count, " of width ", e.width, " in ", q.model.expert_layers(),
          " layers, ", e.per_token, " for each token",
          e.shared_width > 0 ? str(", and a shared one of width ", e.shared_width) : "", "; ",
          format_count(std::llround(costs.in_experts)), " parameters; ", costs.on_a_rank,
          costs.on_a_rank == 1 ? " expert" : " experts", " of a layer on a rank\n            ",
          rounded(costs.mean), " rows for an expert in a micro-batch on average; ",
          rounded(costs.busiest), " for the busiest rank (imbalance ", q.expert_received(),
          e.capacity > 0 ? str(", capacity ", e.capacity) : "", ")\n");
  if (q.ep() == 1) return text;
  return text + str("            all-to-all along ep ", q.ep(),
                    costs.exchange.crosses_hosts ? ", across hosts" : ", inside a host", ": ",
                    planner::size(costs.exchange.bytes), " and ",
                    format_time(costs.exchange.seconds), " in a step\n");
}

std::string experts_table(const planner::Plan& plan) {
  const planner::RunConfig& q = plan.question;
  if (!q.model.experts.any()) return "";
  const std::vector<planner::ExpertMemory> all = planner::expert_memory(plan);
  if (all.size() < 2) return "";
  Table table("rrrrl");
  table.row({"ep", "experts", "their state", "memory", ""});
  for (const planner::ExpertMemory& each : all) {
    if (!each.refused.empty()) continue;
    const char* const here = each.ep == q.ep() ? "this plan" : "";
    const std::string hosts = each.crosses_hosts ? "across hosts" : "";
    table.row({str(each.ep), str(each.experts), planner::size(each.state),
               planner::size(each.needed) + (each.fits ? " " : "!"),
               str(here, *here != 0 && !hosts.empty() ? ", " : "", hosts)});
  }
  const bool over = std::any_of(all.begin(), all.end(), [](const planner::ExpertMemory& each) {
    return each.refused.empty() && !each.fits;
  });
  return str("\nMemory of a rank by ep\n", table.text(), over ? "  !: does not fit\n" : "");
}

}  // namespace tessera::cli
