#include "tessera/train/report.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::train {
namespace {

// Returns the relative difference, such as "+0.42%", or "exact" if the values are equal.
std::string difference(std::int64_t predicted, std::int64_t measured) {
  if (predicted == measured) return "exact";
  if (predicted == 0) return "";
  const double ratio = static_cast<double>(measured) / static_cast<double>(predicted) - 1;
  return (ratio > 0 ? "+" : "") + fixed(100 * ratio, 2) + "%";
}

std::string bytes(std::int64_t value) { return format_bytes(value); }

}  // namespace

std::string memory_table(const Summary& summary) {
  Table table("lrrr");
  table.row({"memory", "predicted", "measured", ""});
  const MemoryBytes &predicted = summary.predicted.memory, &measured = summary.measured.memory;
  const auto add = [&](const std::string& name) {
    const auto want = predicted.find(name), got = measured.find(name);
    if (want == predicted.end() && got == measured.end()) return;
    const bool both = want != predicted.end() && got != measured.end();
    table.row({name, want == predicted.end() ? "–" : bytes(want->second),
               got == measured.end() ? "–" : bytes(got->second),
               both ? difference(want->second, got->second) : ""});
  };
  for (const std::string_view name : kMemoryCategoryNames) add(std::string(name));
  add("peak");
  return table.text();
}

std::string traffic_table(const Summary& summary, const Axes& axes) {
  Table table("lrrr");
  table.row({"bytes sent per rank and step", "predicted", "counted", ""});
  const auto &predicted = summary.predicted.sent, &measured = summary.measured.sent;
  for (const Axis axis : kPrintedAxes) {
    const int ranks = axes.size(axis);
    if (ranks == 1 && axis != Axis::dp_shard) continue;
    table.row({str(axis_name(axis), " over ", ranks, ranks == 1 ? " rank" : " ranks"),
               predicted ? bytes((*predicted)[axis]) : "–",
               measured ? bytes((*measured)[axis]) : "–",
               predicted && measured ? difference((*predicted)[axis], (*measured)[axis]) : ""});
  }
  return table.text();
}

std::string time_table(const std::vector<StepMetrics>& steps) {
  if (steps.empty()) return "";
  // The first steps are not counted: they set up buffers, orders and caches.
  std::size_t first = std::min<std::size_t>(steps.size() / 10 + 1, steps.size() - 1);
  // Neither are steps before the CUDA graph, if there is one.
  const bool graphed = steps.back().graph_s > 0;
  while (graphed && steps[first].graph_s <= 0) ++first;
  double forward = 0, backward = 0, exposed = 0, optimizer = 0, whole = 0, comm = 0, graph = 0;
  bool sent = false;
  for (std::size_t i = first; i < steps.size(); ++i) {
    forward += steps[i].forward_s;
    backward += steps[i].backward_s;
    exposed += steps[i].comm_exposed_s;
    optimizer += steps[i].optimizer_s;
    whole += steps[i].step_s;
    comm += steps[i].comm_s;
    graph += steps[i].graph_s;
    sent = sent || steps[i].sent_bytes > 0;
  }
  const auto count = static_cast<double>(steps.size() - first);
  Table table("lrr");
  table.row({"time per step", "mean", "share"});
  const auto row = [&](const char* name, double seconds) {
    table.row({name, format_time(seconds / count),
               whole > 0 ? fixed(100 * seconds / whole, 1) + "%" : ""});
  };
  const double compute = forward + backward + optimizer + graph;
  const double rest = std::max(0.0, whole - compute - exposed);
  if (graphed) {
    row("whole step, as a CUDA graph", graph);
  } else {
    row("forward", forward);
    row("backward", backward);
    row("exposed communication", exposed);
    row("optimizer", optimizer);
  }
  row("other", rest);
  row("step", whole);
  std::string text = table.text();
  if (sent && comm <= 0) {
    return text + "  communication / computation: this backend does not time its transfers\n";
  }
  const double ratio = compute > 0 ? comm / compute : 0;
  const std::string hidden =
      comm > 0 ? str(", ", fixed(100 * (1 - exposed / comm), 0), "% of it hidden") : "";
  text += str("  communication / computation ", fixed(ratio, 3), " (", format_time(comm / count),
              " of communication per step", hidden, ")\n");
  return text;
}

std::string step_line(const StepMetrics& step) {
  const std::string gpu =
      step.gpu ? str("  GPU ", step.gpu->utilization, "% ", std::llround(step.gpu->power_w), " W")
               : std::string();
  const std::string validated =
      step.evaluation ? str("  eval ", fixed(step.evaluation->loss(), 4)) : std::string();
  std::string experts;
  if (!step.experts.empty()) {
    const auto busiest = std::max_element(
        step.experts.begin(), step.experts.end(),
        [](const ExpertLoad& a, const ExpertLoad& b) { return a.imbalance() < b.imbalance(); });
    experts = str("  busiest expert ", fixed(busiest->imbalance(), 2), "×");
    if (busiest->dropped > 0) experts += str(", ", fixed(100 * busiest->dropped, 1), "% dropped");
  }
  return str("loss ", fixed(step.loss, 4), validated, experts, "  ",
             format_count(std::llround(step.tokens_per_s())), " tokens/s  ",
             format_time(step.step_s), "/step  ", format_bytes(step.mem_peak_bytes), gpu);
}

std::string final_report(const Trainer& trainer, const Summary& summary,
                         const std::vector<std::string>& answers) {
  if (summary.steps == 0) return str("  no step was taken; parameters ", summary.params_hash, "\n");
  const Resolved& resolved = trainer.resolved();
  std::string text = "\n" + memory_table(summary) + "\n";
  text += traffic_table(summary, resolved.axes.with_dp(resolved.ranks)) + "\n" +
          time_table(trainer.history());
  if (summary.predicted.step_s) {
    text += str("  step predicted for ", trainer.config().hardware_name, ": ",
                format_time(*summary.predicted.step_s),
                ", median measured: ", format_time(summary.step_s), " (",
                fixed(100 * (summary.step_s / *summary.predicted.step_s - 1), 1), "%)\n");
  }
  if (summary.bubble) {
    text += str("  pipeline bubble ", fixed(100 * *summary.bubble, 1), "% of the passes; ",
                fixed(100 * *summary.predicted_bubble, 1), "% if all stages took the same time\n");
  }
  if (summary.data_prepare_s > 0) {
    text += str("  data: a step waits ", format_time(summary.data_s), "; prepared in ",
                format_time(summary.data_prepare_s), ", ", fixed(summary.data_rate(), 0),
                " × as fast as training\n");
  }
  text += trainer.graph_note();
  for (const SlowRank& slow : summary.slow_ranks) {
    text += str("  rank ", slow.rank, " is slow: its ", slow.phase, " takes ",
                fixed(slow.factor, 2), " × the median of the ranks\n");
  }
  if (summary.saves > 0) {
    text += str("  ", plural(summary.saves, "save"), " delayed training by ",
                format_time(summary.save_exposed_s), summary.saves == 1 ? ", " : " each, ",
                fixed(summary.save_exposed_percent(), 1), "% of a step\n");
  }
  if (!answers.empty()) {
    text += "\n  answers of the model\n";
    for (const std::string& line : answers) text += "    " + line + "\n";
  }
  text += str("\n  loss ", fixed(summary.first_loss, 4), " → ", fixed(summary.last_loss, 4), " in ",
              plural(summary.steps, "step"), ", ", format_count(std::llround(summary.tokens_per_s)),
              " tokens/s (median); parameters ", summary.params_hash, "\n");
  if (summary.evaluation) {
    text += str("  validation: ", describe(*summary.evaluation), "\n");
  }
  if (summary.skipped > 0) {
    text += str("  ", plural(summary.skipped, "step"), " skipped: gradients were not finite\n");
  }
  return text;
}

}  // namespace tessera::train
