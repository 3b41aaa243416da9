// Report of tessera plan --sweep.

#include <algorithm>
#include <cmath>

#include "tessera/cli/plan_report.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/remedy.h"

namespace tessera::cli {
namespace {

// Draws a bar; 24 columns for `most`.
std::string curve_bar(double value, double most) {
  const double share = most > 0 ? value / most : 0;
  std::string bar;
  for (long i = 0; i < std::max(value > 0 ? 1L : 0L, std::lround(24 * share)); ++i) bar += "▇";
  return bar;
}

}  // namespace

std::string report(const planner::PlanSweep& sweep, const std::vector<planner::SweptPlan>& rows) {
  double most = 0, slowest = 0;
  const planner::Plan* first = nullptr;
  for (const planner::SweptPlan& row : rows) {
    if (!row.plan) continue;
    if (first == nullptr) first = &*row.plan;
    most = std::max(most, row.plan->needed());
    slowest = std::max(slowest, row.plan->time.step());
  }
  const planner::Question& q = first->question;
  const bool timed = slowest > 0;
  std::string text =
      str(q.state_only() ? format_count(std::llround(std::min(q.params, 9e18))) + " parameters"
          : q.model.name.empty()
              ? std::string("a model of ") + format_count(q.model.params()) + " parameters"
              : q.model.name,
          " on ", q.hardware.name, " (", planner::size(usable_memory(q.hardware)),
          " usable), layout ", q.layout.name, ": sweep of --", sweep.setting, "\n\n");
  Table table(timed ? "rrrlrlrr" : "rrrl");
  std::vector<std::string> head = {sweep.setting, "GPUs", "memory", ""};
  if (timed) head.insert(head.end(), {"step", "", "tokens/s", "sent"});
  table.row(head);
  std::string refused;
  bool over = false;
  for (const planner::SweptPlan& row : rows) {
    if (!row.plan) {
      table.row({row.value, "-"});
      refused += str("  ", row.value, ": ", row.refused, "\n");
      continue;
    }
    const planner::Plan& plan = *row.plan;
    over = over || !plan.fits;
    std::vector<std::string> cells = {row.value, str(plan.question.world()),
                                      planner::size(plan.needed()) + (plan.fits ? " " : "!"),
                                      curve_bar(plan.needed(), most)};
    if (timed) {
      cells.insert(
          cells.end(),
          {format_time(plan.time.step()), curve_bar(plan.time.step(), slowest),
           format_grouped(std::llround(plan.tokens_per_s)), planner::size(plan.traffic.total())});
    }
    table.row(cells);
  }
  text += table.text();
  if (over) text += "  ! does not fit\n";
  if (!timed)
    text += "  The parameter count alone does not define the time: use --model, or sizes\n";
  if (!refused.empty()) text += "\nNot possible\n" + refused;
  return text;
}

}  // namespace tessera::cli
