#include "tessera/cli/simulate_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/cli/experts_report.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

using planner::RunConfig;
using simulator::RankTime;
using simulator::Reliability;

constexpr int kShownRanks = 16;
constexpr double kLargeDifference = 0.05;  // above this the report gives a reason

std::string share(double part) { return fixed(100 * part, 1) + "%"; }
std::string whole(double value) { return format_grouped(std::llround(value)); }

std::string model_of(const RunConfig& q) {
  return q.model.name.empty() ? str(q.model.layers, " layers of ", q.model.hidden) : q.model.name;
}

std::string heading(const RunConfig& q, bool given_times) {
  const std::string what = given_times
                               ? str("given times on ", whole(q.world()), " ranks")
                               : str(model_of(q), " on ", whole(q.world()), " × ", q.hardware.name);
  std::string text = str(what, ": ", q.axes.words(" · "), ", ZeRO ", q.zero, ", ", q.grad_accum,
                         q.grad_accum == 1 ? " micro-batch of " : " micro-batches of ",
                         q.micro_batch, " × ", q.seq);
  if (q.pipelined()) text += str(", schedule ", q.schedule);
  if (q.pipelined() && q.chunks > 1) text += str(" with ", q.chunks, " chunks");
  return text + "\n";
}

// Returns the time waiting for both data-parallel axes.
double waiting_for_dp(const RankTime& time) {
  return time.comm[Axis::dp_shard] + time.comm[Axis::dp_replicate];
}

std::string time_table(const Simulation& s) {
  const RankTime& mean = s.result.mean;
  Table table("lrr");
  const auto row = [&](const std::string& what, double seconds) {
    table.row({what, format_time(seconds), share(seconds / s.result.step)});
  };
  row("compute", mean.compute);
  for (const Axis axis : kTableAxes) {
    if (is_optional(axis) && s.scenario.axes.size(axis) == 1) continue;
    row(str("waiting for ", axis_title(axis)), mean.comm[axis]);
  }
  row("bubble", mean.bubble);
  row("optimizer", mean.optimizer);
  return table.text();
}

// Formats one row per pipeline rank: the mean over its replicas, and the least and most busy one.
std::string ranks_table(const Simulation& s) {
  const bool many = s.result.replicas > 1;
  const bool context = s.scenario.axes.size(Axis::cp) > 1;
  const bool experts = s.scenario.axes.size(Axis::ep) > 1;
  std::vector<std::string> names = {"pp rank", "busy", "tp", "pp", "dp", "bubble"};
  if (experts) names.insert(names.begin() + 3, "ep");
  if (context) names.insert(names.begin() + 3, "cp");
  if (many) names.insert(names.begin() + 2, {"least", "most"});
  Table table(std::string(names.size(), 'r'));
  table.row(names);
  const int shown = std::min(s.scenario.pp(), kShownRanks);
  for (int p = 0; p < shown; ++p) {
    RankTime mean;
    double least = s.result.step, most = 0;
    for (int d = 0; d < s.result.replicas; ++d) {
      const RankTime& one = s.result.at(p, d);
      mean.add(one, 1.0 / s.result.replicas);
      least = std::min(least, one.compute);
      most = std::max(most, one.compute);
    }
    const double step = s.result.step;
    std::vector<std::string> cells = {std::to_string(p),
                                      share(mean.compute / step),
                                      share(mean.comm[Axis::tp] / step),
                                      share(mean.comm[Axis::pp] / step),
                                      share(waiting_for_dp(mean) / step),
                                      share(mean.bubble / step)};
    if (experts) cells.insert(cells.begin() + 3, share(mean.comm[Axis::ep] / step));
    if (context) cells.insert(cells.begin() + 3, share(mean.comm[Axis::cp] / step));
    if (many) cells.insert(cells.begin() + 2, {share(least / step), share(most / step)});
    table.row(cells);
  }
  std::string text = table.text();
  if (shown < s.scenario.pp()) text += str("  … ", s.scenario.pp() - shown, " more\n");
  return text;
}

std::string failures_text(const Simulation& s) {
  const Reliability& r = *s.reliability;
  const simulator::FailurePlan plan = simulator::plan_failures(r, s.result.step, s.scenario.seed);
  return str("\nFailures  one every ", format_time(r.system_mtbf()), " in ", whole(r.devices),
             " devices (each: ", format_time(r.mtbf), ")\n", "  best: a checkpoint every ",
             whole(plan.steps), plan.steps == 1 ? " step, " : " steps, ",
             format_time(plan.interval), " (Young ", format_time(simulator::young_interval(r)),
             ", Daly ", format_time(simulator::daly_interval(r)), ")\n", "  goodput ",
             share(plan.goodput), "; by events ", share(plan.simulated.fraction), " ± ",
             share(plan.simulated.error), "; ", whole(plan.goodput * s.tokens_per_s()),
             " tokens/s net of failures\n");
}

std::string bytes(double value) { return format_bytes(std::llround(std::min(value, 9e18))); }

std::string fit_text(const Fit& fit, const RunConfig& q) {
  const std::string numbers =
      str(bytes(fit.needed), " of the ", bytes(fit.usable), " that ", q.hardware.name, " can fill");
  if (fit.fits()) return str("Memory  ", numbers, ": fits\n");
  return str("Memory  ", numbers, ": DOES NOT FIT, so no step like this can run; ", fit.remedy,
             "\n");
}

// Describes the sizes that do not fit; "" if all fit.
std::string misfits_text(const Sweep& s) {
  std::string sizes;
  const Fit* first = nullptr;
  for (std::size_t i = 0; i < s.fits.size(); ++i) {
    if (!s.rows[i].refused.empty() || s.fits[i].fits()) continue;
    sizes += str(sizes.empty() ? "" : ", ", s.rows[i].size);
    if (first == nullptr) first = &s.fits[i];
  }
  if (first == nullptr) return "";
  return str("\nDOES NOT FIT at ", s.range.axis, " ", sizes,
             " (marked !), where no such step can run: ", bytes(first->needed), " of the ",
             bytes(first->usable), " that ", s.question.hardware.name, " can fill; ", first->remedy,
             "\n");
}

}  // namespace

std::string simulation_text(const Simulation& s) {
  const simulator::Result& r = s.result;
  std::string text = str(heading(s.question, s.given_times), "\nStep  ", format_time(r.step), ", ",
                         whole(s.tokens_per_s()), " tokens/s, computing ", share(r.utilization),
                         " of the time, bubble ", share(r.bubble), "\n");
  if (s.given_times && s.question.tp() > 1 && s.result.mean.comm[Axis::tp] == 0) {
    text += "  the tp collectives take no time: set it with --tp-time\n";
  }
  if (s.fit) text.insert(text.find('\n') + 1, fit_text(*s.fit, s.question));
  if (s.fit && s.fit->experts) {
    planner::ExpertCosts costs = *s.fit->experts;
    costs.exchange.seconds = r.mean.comm[Axis::ep];
    text.insert(text.find('\n') + 1, experts_text(s.question, costs));
  }
  text += time_table(s);
  if (s.agreement) {
    const double apart = s.agreement->apart();
    text += str("  tessera plan, by closed forms: ", format_time(s.agreement->planned), ", ",
                share(std::abs(apart)), apart < 0 ? " less" : " more");
    if (std::abs(apart) > kLargeDifference) text += str(" (", simulator::reason(*s.agreement), ")");
    text += "\n";
  }
  if (s.quicker > 0 && s.quicker < 0.99 * r.step) {
    text += str("  with trees where they are faster than rings (--collective auto): ",
                format_time(s.quicker), "\n");
  }
  text += str("\nRanks, as fractions of the step\n", ranks_table(s));
  if (s.scenario.averages_gradients()) {
    text += r.replicas == 1
                ? str("  one replica represents all ", s.scenario.dp(), ", which are equal\n")
                : str("  each of the ", s.scenario.dp(), " replicas was simulated separately\n");
    if (s.scenario.replicas() > 1) {
      text += str("  state is sharded over ", plural(s.scenario.shards(), "rank"), ", and ",
                  s.scenario.replicas(), " groups of them hold the same state\n");
    }
  }
  if (s.reliability) text += failures_text(s);
  return text;
}

std::string sweep_title(const Sweep& s) {
  const RunConfig& q = s.question;
  std::string text = str(model_of(q), " on ", q.hardware.name);
  for (const Axis axis : kPrintedAxes) {
    const int size = q.axes.given(axis);
    if (s.range.axis != axis_name(axis) && size > 1) text += str(", ", axis_name(axis), " ", size);
  }
  return text + str(", ZeRO ", q.zero, ", ", s.range.axis, " ", s.range.sizes.front(), " to ",
                    s.range.sizes.back());
}

// Axes whose ranks communicate inside the layers or between them.
constexpr AxisSet kInside = kInLayerAxes.with(kLayerAxes);

double waiting_inside(const RankTime& time) {
  double seconds = 0;
  for (const Axis axis : kInside) seconds += time.comm[axis];
  return seconds;
}

std::string sweep_text(const Sweep& s) {
  const auto uses = [&](Axis axis) {
    return s.question.axes.size(axis) > 1 || s.range.axis == axis_name(axis);
  };
  std::string inside;
  for (const Axis axis : kInside) {
    if (is_optional(axis) && !uses(axis)) continue;
    inside += str(inside.empty() ? "" : " + ", axis_name(axis));
  }
  std::vector<std::string> names = {s.range.axis, "GPUs", "step", "tokens/s", "per GPU",
                                    "efficiency", "law",  "dp",   inside,     "bubble"};
  if (s.reliability) names.emplace_back("goodput");
  if (!s.fits.empty()) names.emplace_back("memory");
  Table table(std::string(names.size(), 'r'));
  table.row(names);
  std::string refused;
  for (std::size_t i = 0; i < s.rows.size(); ++i) {
    const simulator::SweepRow& row = s.rows[i];
    if (!row.refused.empty()) {
      refused += str("  ", s.range.axis, " ", row.size, ": ", row.refused, "\n");
      continue;
    }
    std::vector<std::string> cells = {std::to_string(row.size),
                                      whole(row.gpus),
                                      format_time(row.step),
                                      whole(row.tokens_per_s),
                                      whole(row.tokens_per_s / row.gpus),
                                      share(row.efficiency),
                                      share(row.law),
                                      share(waiting_for_dp(row.mean) / row.step),
                                      share(waiting_inside(row.mean) / row.step),
                                      share(row.bubble)};
    if (s.reliability) {
      Reliability r = *s.reliability;
      r.devices = row.gpus;
      cells.push_back(share(simulator::plan_failures(r, row.step, 0).goodput));
    }
    if (!s.fits.empty()) {
      cells.push_back(str(bytes(s.fits[i].needed), s.fits[i].fits() ? "" : " !"));
    }
    table.row(cells);
  }
  std::string text =
      str(sweep_title(s), "\n\n", table.text(), refused.empty() ? "" : "\nNot possible\n" + refused,
          misfits_text(s), "\n", simulator::compare_with_law(s.range, s.rows, s.law_cost), "\n");
  const simulator::SweepRow& last = s.rows.back();
  if (last.refused.empty() && s.quicker > 1.01 * last.tokens_per_s) {
    text +=
        str("The number of rounds of collectives grows with the nodes: with trees where they are "
            "faster (--collective auto) ",
            s.range.axis, " ", last.size, " reaches ",
            share(last.efficiency * s.quicker / last.tokens_per_s), " instead of ",
            share(last.efficiency), ".\n");
  }
  return text;
}

std::string setting_sweep_text(const std::string& setting, const std::vector<SettingRow>& rows) {
  Table table("rrrrrrr");
  table.row({setting, "GPUs", "step", "tokens/s", "exposed comm", "bubble", "memory"});
  std::string refused;
  for (const SettingRow& row : rows) {
    if (!row.refused.empty()) {
      refused += str("  ", setting, " ", row.value, ": ", row.refused, "\n");
      continue;
    }
    table.row({row.value, whole(row.gpus), format_time(row.result.step), whole(row.tokens_per_s),
               share(sum(row.result.mean.comm) / row.result.step), share(row.result.bubble),
               row.fit ? str(bytes(row.fit->needed), row.fit->fits() ? "" : " !") : "–"});
  }
  const bool misfits = std::any_of(
      rows.begin(), rows.end(), [](const SettingRow& row) { return row.fit && !row.fit->fits(); });
  return str("simulated steps by --", setting, "\n\n", table.text(),
             misfits ? "  !: does not fit\n" : "",
             refused.empty() ? "" : "\nNot possible\n" + refused);
}

std::string setting_sweep_json(const std::string& setting, const std::vector<SettingRow>& rows) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const SettingRow& row : rows) {
    nlohmann::ordered_json json = {{"value", row.value}};
    if (!row.refused.empty()) {
      json["error"] = row.refused;
    } else {
      json["gpus"] = row.gpus;
      json["step"] = row.result.step;
      json["tokens_per_s"] = row.tokens_per_s;
      json["comm_exposed"] = sum(row.result.mean.comm);
      json["bubble"] = row.result.bubble;
      if (row.fit) {
        json["memory"] = std::llround(row.fit->needed);
        json["fits"] = row.fit->fits();
      }
    }
    all.push_back(std::move(json));
  }
  const nlohmann::ordered_json json = {{"swept", setting}, {"sweep", std::move(all)}};
  return json.dump() + "\n";
}

}  // namespace tessera::cli
