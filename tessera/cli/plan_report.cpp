#include "tessera/cli/plan_report.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/cli/experts_report.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/places.h"

namespace tessera::cli {
namespace {

using planner::Plan;
using planner::RunConfig;

std::string size(double bytes) {
  const auto whole = std::llround(std::min(std::abs(bytes), 9e18));  // fits into 64 bits
  return (bytes < 0 ? "-" : "") + format_bytes(whole);
}
std::string count(double value) { return format_count(std::llround(value)); }
std::string grouped(double value) { return format_grouped(std::llround(value)); }

std::string energy(double joules) {
  if (joules < 1e3) return fixed(joules, 1) + " J";
  if (joules < 1e6) return fixed(joules / 1e3, 2) + " kJ";
  return joules < 1e9 ? fixed(joules / 1e6, 2) + " MJ" : fixed(joules / 1e9, 2) + " GJ";
}

std::string percent(double share) { return fixed(100 * share, 1) + "%"; }

std::string model_words(const RunConfig& q) {
  if (q.state_only()) return count(q.params) + " parameters";
  const ModelShape& m = q.model;
  return str(m.name.empty() ? "a model" : m.name, " of ", m.layers, " layers, hidden ", m.hidden,
             ", ", m.heads, " heads", m.kv_heads != m.heads ? str(" (", m.kv_heads, " kv)") : "",
             ", vocabulary ", format_grouped(m.vocab), ", seq ", q.seq);
}

std::string mesh_words(const RunConfig& q) {
  return str(q.axes.words(" · "), q.sequence_parallel ? " · sequence" : "", ", ZeRO ", q.zero);
}

std::string schedule_words(const RunConfig& q) {
  if (!q.pipelined()) return "-";
  return q.chunks > 1 ? str(q.schedule, "×", q.chunks) : str(q.schedule);
}

std::string heading(const Plan& plan) {
  const RunConfig& q = plan.question;
  std::string text =
      str(model_words(q), "\non ", q.world(), " × ", q.hardware.name, " (", q.nodes,
          q.nodes == 1 ? " node" : " nodes", " of ", q.per_node, "): ", mesh_words(q), ", layout ",
          q.layout.name,
          q.optimizer_state == OptimizerState::fp32 ? std::string()
                                                    : str(" with moments in ", q.optimizer_state),
          " (", q.layout.total(), " B per parameter)\n");
  if (!q.state_only()) {
    text +=
        str("global batch ", q.global_batch, " = micro-batch ", q.micro_batch, " × accumulation ",
            q.grad_accum, " × dp ", q.dp(), "; recompute ", name(q.recompute), "; attention ",
            q.attention == planner::Attention::fused ? "fused" : "unfused",
            q.cp() > 1 ? str(", ", name(q.cp_kind), " over cp ", q.cp()) : "", "; as ",
            planner::title(q.software.value_or(planner::Software::megatron)), " runs it");
    if (q.pipelined()) text += str("; schedule ", schedule_words(q));
    text += "\n";
  }
  text += str("\nParameters  ", grouped(plan.parameters));
  if (!q.state_only()) {
    text += str(" = ", count(plan.in_blocks), " in blocks + ", count(plan.in_embeddings),
                " in embeddings");
  }
  const bool routed = q.model.experts.any();
  if (routed) text += str("; ", grouped(static_cast<double>(q.model.active_params())), " active");
  return text + str("; ", grouped(plan.on_a_rank), " on the most loaded rank\n") +
         (routed ? experts_text(q, planner::expert_costs(plan)) : "");
}

std::string shape_words(const ModelShape& m) {
  return str(m.layers, " layers, hidden ", m.hidden, ", ", m.heads, " heads (",
             format_count(m.params()), " parameters)");
}

// Describes which rows are known and which are estimated if only the parameter count is given.
std::string assumed_words(const Plan& plan) {
  const RunConfig& q = plan.question;
  if (!plan.assumed) {
    return "  counted: the state. Activations, buffers and temporaries are unknown without the "
           "model's sizes\n  (--model, or --layers --hidden --heads)\n";
  }
  return str("  --params does not define the last three rows: they are estimates (~) for a GPT of ",
             shape_words(plan.assumed->model), ",\n  seq ", plan.assumed->seq, ", micro-batch ",
             q.micro_batch, "; use --model, or --layers --hidden --heads, for your own model\n");
}

std::string flops(double value) {
  return value < 1e12 ? fixed(value / 1e9, 1) + " GFLOP" : fixed(value / 1e12, 1) + " TFLOP";
}

std::string memory_table(const Plan& plan) {
  const RunConfig& q = plan.question;
  const bool sized = q.state_only();
  const planner::Memory& m = plan.assumed ? plan.assumed->memory : plan.memory;
  const auto rest = [&](double bytes) {
    if (!sized) return size(bytes);
    return plan.assumed ? "~ " + size(bytes) : std::string("unknown");
  };
  Table table("lr");
  table.row({"params", size(m.params)});
  table.row({"grads", size(m.grads)});
  table.row({"optimizer", size(m.optimizer)});
  if (m.on_disk > 0) table.row({"in files", str("(", size(m.on_disk), ")")});
  if (sized) table.row({"state", size(plan.memory.total())});
  table.row({"activations", rest(m.activations)});
  table.row({"buffers", rest(m.buffers)});
  table.row({"temporary", rest(m.temporary)});
  if (m.not_at_once > 0) table.row({"not at once", "-" + size(m.not_at_once)});
  if (!sized || plan.assumed) table.row({"total", rest(m.total())});
  const char* verdict = !plan.fits        ? "  DOES NOT FIT"
                        : !plan.fit_known ? "  the state alone fits"
                        : sized           ? "  fits, by this estimate,"
                                          : "  fits";
  return str("\nMemory of a rank (", q.hardware.name,
             q.pipelined() ? str(", pipeline rank ", plan.rank) : "", ")\n", table.text(),
             sized ? assumed_words(plan) : "", verdict, " in the ", size(usable_memory(q.hardware)),
             " that ", q.hardware.name, " can fill: ", size(std::abs(plan.margin)),
             plan.fits ? " left\n" : " too much\n");
}

std::string traffic_table(const Plan& plan) {
  const planner::Traffic& t = plan.traffic;
  const RunConfig& q = plan.question;
  const std::string unknown =
      q.state_only() && q.axes.model_ranks() > 1
          ? str("  ", q.cp() > 1 ? "tp, cp and pp" : "tp and pp",
                " send activations, unknown from the parameter count and not counted\n")
          : "";
  if (t.rows.empty()) return unknown.empty() ? "" : "\nBytes a rank sends per step\n" + unknown;
  Table table("llrr");
  for (const planner::TrafficRow& row : t.rows) {
    table.row(
        {std::string(axis_name(row.axis)), row.what, grouped(row.calls) + " ×", size(row.bytes)});
  }
  table.row({"", "total", "", size(t.total())});
  std::string text = "\nBytes a rank sends per step (ring)\n" + table.text();
  if (t.dp_each != t.dp_last) {
    text += str("  gradients reduced each micro-batch: dp ", size(t.dp_each),
                "; once, without sharding them: ", size(t.dp_last), "\n");
  }
  return text + unknown;
}

std::string time_table(const Plan& plan) {
  if (plan.question.state_only()) return "";
  const planner::StepTime& t = plan.time;
  Table table("lrr");
  const auto row = [&](std::string name, double seconds) {
    if (seconds > 0) {
      table.row({std::move(name), format_time(seconds), percent(seconds / t.step())});
    }
  };
  row("compute", t.compute);
  for (const Axis axis : kTableAxes) row(str("waiting for ", axis_title(axis)), t.comm[axis]);
  row("bubble", t.bubble);
  row("optimizer", t.optimizer);
  row("step", t.step());
  const double per_rank = plan.model_flops / (t.step() * plan.question.world());
  std::string text =
      str("\nTime of a step\n", table.text(), "  four of five such runs take ",
          format_time(plan.interval.low), " to ", format_time(plan.interval.high), ", by ",
          plan.interval.basis, "\n  ", grouped(plan.tokens_per_s), " tokens/s; ", flops(per_rank),
          "/s per rank, MFU ", percent(plan.mfu), "\n");
  if (plan.price > 0) text += str("  costs ", fixed(plan.price, 4), " per step\n");
  if (plan.joules > 0) {
    text += str("  uses ", energy(plan.joules), " per step\n");
  }
  return text;
}

// Lists rows with an unusual order of axes, and rows whose tp, cp or ep spans several
// nodes.
std::string placement_text(const planner::SearchResult& result) {
  std::string text;
  PerAxis<std::vector<std::string>> across;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const RunConfig& q = result.best[i].question;
    if (q.order != planner::kUsualOrder)
      text += str("  row ", i + 1, ": --axis-order ", q.order, "\n");
    for (const Axis axis : kInLayerAxes) {
      if (places(q).along[axis].nodes() > 1) across[axis].push_back(str(i + 1));
    }
  }
  for (const Axis axis : kInLayerAxes) {
    if (across[axis].empty()) continue;
    text += str(across[axis].size() == 1 ? "  row " : "  rows ", join(across[axis], ", "), ": ",
                axis_name(axis), " goes across hosts\n");
  }
  return text;
}

}  // namespace

std::string report(const Plan& plan) {
  std::string text = heading(plan) + memory_table(plan) + experts_table(plan) +
                     traffic_table(plan) + time_table(plan);
  if (plan.question.state_only() && plan.fits) {
    text += str("\nThe parameter count alone does not define the time or its bound: ", plan.remedy,
                "\n");
  } else {
    text += str("\nBound by ", name(plan.bound), "; remedy: ", plan.remedy, "\n");
  }
  if (!plan.advice.empty()) text += "\nAdvice (each planned separately)\n";
  for (const planner::Advice& advice : plan.advice) text += "  - " + advice.text + "\n";
  if (!plan.notes.empty()) text += "\nNotes\n";
  for (const std::string& line : plan.notes) text += "  - " + line + "\n";
  return text;
}

namespace {

// Returns the size of an axis; "8s" for tp with sequence parallelism.
std::string size_words(const RunConfig& q, Axis axis) {
  return str(q.axes.given(axis), axis == Axis::tp && q.sequence_parallel ? "s" : "");
}

// Describes a plan in one line: "tp 8 · pp 2 · dp 1, ZeRO 0, micro-batch 1 × 64, recompute full".
std::string plan_words(const RunConfig& q) {
  std::string mesh;
  for (const Axis axis : kFactorAxes) {
    if (axis == Axis::cp && q.cp() == 1) continue;
    mesh += str(mesh.empty() ? "" : " · ", axis_name(axis), " ", size_words(q, axis));
  }
  if (q.ep() > 1) mesh += str(" (ep ", q.ep(), ")");
  return str(mesh, ", ZeRO ", q.zero, ", micro-batch ", q.micro_batch, " × ", q.grad_accum,
             q.pipelined() ? ", " + schedule_words(q) : "", ", recompute ", name(q.recompute));
}

// Describes the plan that is closest to fitting and the one on more devices that fits.
std::string nothing_fits_text(const planner::SearchResult& result) {
  std::string text;
  if (result.closest) {
    const Plan& plan = *result.closest;
    const RunConfig& q = plan.question;
    text += str("least memory: ", size(plan.needed()), " of the usable ",
                size(planner::usable_memory(q.hardware)), ", by ", plan_words(q), "\n",
                plan.remedy.empty() ? "" : str("  ", plan.remedy, "\n"));
  }
  if (result.nearest_fit) {
    const Plan& plan = *result.nearest_fit;
    text += str("fits on ", plan.question.world(), " × ", plan.question.hardware.name, ": ",
                size(plan.needed()), ", ", grouped(plan.tokens_per_s), " tokens/s, by ",
                plan_words(plan.question), "\n");
  }
  return text + "use more --gpus, --hardware with more memory, or fewer fixed flags\n";
}

}  // namespace

std::string report(const planner::SearchResult& result) {
  const auto uses = [&](Axis axis) {
    return std::any_of(result.best.begin(), result.best.end(),
                       [&](const Plan& plan) { return plan.question.axes.size(axis) > 1; });
  };
  const bool hybrid = uses(Axis::dp_replicate);
  std::vector<Axis> axes(kTableAxes.begin(), kTableAxes.end());
  std::erase_if(axes, [&](Axis axis) { return is_optional(axis) && !uses(axis); });
  Table table("r" + std::string(axes.size(), 'r') + "rrrllrrrr");
  std::vector<std::string> names = {""};
  for (const Axis axis : axes) names.emplace_back(axis_title(axis));
  for (const char* name :
       {"ZeRO", "micro", "accum", "schedule", "recompute", "memory", "step", "tokens/s", "MFU"}) {
    names.emplace_back(name);
  }
  table.row(names);
  for (const Plan& plan : result.best) {
    const RunConfig& q = plan.question;
    const bool equal = result.best.size() > 1 && as_good_as(plan, result.best.front());
    std::vector<std::string> cells = {equal ? "=" : ""};
    for (const Axis axis : axes) cells.push_back(size_words(q, axis));
    for (std::string& cell : std::vector<std::string>{
             str(q.zero), str(q.micro_batch), str(q.grad_accum), schedule_words(q),
             std::string(name(q.recompute)), size(plan.memory.total()),
             format_time(plan.time.step()), grouped(plan.tokens_per_s), percent(plan.mfu)}) {
      cells.push_back(std::move(cell));
    }
    table.row(cells);
  }
  std::string text;
  if (!result.best.empty()) {
    const RunConfig& q = result.best.front().question;
    text = str(
        model_words(q), "\non ", q.world(), " × ", q.hardware.name, ", global batch ",
        q.global_batch, "\n\n", table.text(),
        "  (tp with s: sequence parallel; =: equal to the first row within the accuracy of the ",
        "prediction)\n",
        uses(Axis::ep) ? "  (ep: of the dp ranks, those that share the experts of a layer)\n" : "",
        hybrid ? "  (replicas: --dp-replicate, groups of dp ranks, each with all state)\n" : "",
        placement_text(result), "\n");
  }
  text += str(format_grouped(result.tried), " configurations tried, ",
              result.fitting == 0 ? "none" : format_grouped(result.fitting), " fit\n",
              result.fitting == 0 ? nothing_fits_text(result) : "",
              result.ruled_out.empty() ? "" : "Ruled out\n");
  Table reasons("rl");
  for (const auto& [reason, number] : result.ruled_out) {
    reasons.row({format_grouped(number), reason});
  }
  return text + reasons.text();
}

namespace {

// Describes the replicas and ep of a limits table, whose rows are by stage and dp.
std::string limit_replicas(const RunConfig& q) {
  std::string text;
  if (q.replicas() > 1) {
    text = str("  (", q.replicas(), " replicas if they divide dp and the stage shards)\n");
  }
  if (q.ep() == 1) return text;
  return text + str("  (ep ", q.ep(), ", or the largest divisor of it that divides dp · cp)\n");
}

}  // namespace

std::string report(const planner::BatchLimits& limits, const RunConfig& q) {
  Table table("rrrrr");
  table.row({"ZeRO", "dp", "per GPU", "global batch", "memory"});
  for (const planner::BatchLimit& each : limits.rows) {
    table.row({str(each.zero), str(each.dp), str(each.micro_batch), str(each.global_batch),
               each.micro_batch > 0 ? size(each.memory) : "-"});
  }
  return str("Largest batch of ", model_words(q), "\non ", q.hardware.name, ", ",
             size(usable_memory(q.hardware)), " usable, layout ", q.layout.name, "\n\n",
             table.text(), limit_replicas(q));
}

std::string report(const planner::ModelLimits& limits, const RunConfig& q) {
  Table table("rrrrrrr");
  table.row({"ZeRO", "dp", "parameters", "layers", "hidden", "heads", "memory"});
  for (const planner::ModelLimit& each : limits.rows) {
    const bool shaped = each.model.layers > 0;
    table.row({str(each.zero), str(each.dp), each.params > 0 ? count(each.params) : "none",
               shaped ? str(each.model.layers) : "-", shaped ? str(each.model.hidden) : "-",
               shaped ? str(each.model.heads) : "-", size(each.memory)});
  }
  return str(q.state_only() ? "Largest model by state only: activations are not counted"
                            : "Largest model scaled from " + model_words(q),
             "\non ", q.hardware.name, ", ", size(usable_memory(q.hardware)), " usable, layout ",
             q.layout.name, q.state_only() ? "" : str(", micro-batch ", q.micro_batch), "\n\n",
             table.text(), limit_replicas(q));
}

std::string report(const planner::MegatronReport& r) {
  Table table("lr");
  table.row({"parameters in transformer layers, billions", fixed(r.in_blocks / 1e9, 2)});
  table.row({"parameters in embedding layers, billions", fixed(r.in_embeddings / 1e9, 2)});
  table.row({"all parameters, billions", fixed(r.total() / 1e9, 2)});
  table.row({"parameters on the most loaded shard, billions", fixed(r.most_loaded_shard / 1e9, 4)});
  table.row({"weights and optimizer, MB (as Megatron prints MiB)", fixed(r.mib(), 2)});
  return str("As Megatron-LM counts (no biases, no positions, padded vocabulary)\n", table.text(),
             "  that is ", size(r.bytes), " in units of 10^9 bytes\n");
}

std::string report(const planner::Score& score, std::size_t worst) {
  // Predictions for one node and for several have different sources of error.
  Table groups("lrrrrr");
  groups.row({"", "runs", "mean error", "median", "90%", "bias"});
  const auto group = [&](const char* name, const std::function<bool(const RunConfig&)>& in) {
    std::vector<planner::ScoredRow> rows;
    for (const planner::ScoredRow& row : score.rows) {
      if (in(row.question)) rows.push_back(row);
    }
    if (rows.empty()) return;
    const planner::Score s = planner::score(std::move(rows));
    groups.row({name, str(s.rows.size()), percent(s.mean), percent(s.median),
                percent(s.percentile90), percent(s.bias)});
  };
  group("all", [](const RunConfig&) { return true; });
  group("one node", [](const RunConfig& q) { return q.nodes == 1; });
  group("several nodes", [](const RunConfig& q) { return q.nodes > 1; });
  Table by("llrrr");
  by.row({"by", "", "runs", "mean error", "bias"});
  std::string last;
  for (const planner::ScoreGroup& each : planner::score_groups(score)) {
    by.row({each.by == last ? "" : each.by, each.value, str(each.rows), percent(each.mean),
            percent(each.bias)});
    last = each.by;
  }
  Table table("lrrrl");
  table.row({"run", "measured", "predicted", "error", "what"});
  for (std::size_t i = 0; i < std::min(worst, score.rows.size()); ++i) {
    const planner::ScoredRow& row = score.rows[i];
    const RunConfig& q = row.question;
    table.row({row.label, format_time(row.measured), format_time(row.predicted),
               percent(row.error()),
               str("h ", q.model.hidden, ", L ", q.model.layers, ", ", mesh_words(q), ", batch ",
                   q.micro_batch, "×", q.grad_accum, "×", q.dp())});
  }
  return str("Predicted against measured step times\n", groups.text(),
             "\nErrors by group (bias: positive if predicted too slow)\n", by.text(),
             "\nLargest errors\n", table.text());
}

std::string list_models() {
  Table table("lrrrrrrr", "");
  table.row({"name", "layers", "hidden", "heads", "kv", "ffn", "vocab", "parameters"});
  for (const ModelShape& m : model_shapes()) {
    table.row({m.name, str(m.layers), str(m.hidden), str(m.heads), str(m.kv_heads), str(m.ffn),
               str(m.vocab), format_grouped(m.params())});
  }
  return table.text();
}

std::string list_hardware(const planner::Catalog& catalog) {
  Table table("lrrrrrrl", "");
  table.row({"name", "memory", "16-bit TFLOP/s", "memory speed", "in a node", "between", "per node",
             "software"});
  for (const planner::Hardware& h : catalog.all()) {
    const double peak = h.peak_16bit / 1e12;
    table.row({h.name, size(h.memory), peak > 0 ? fixed(peak, peak < 1 ? 3 : 1) : "-",
               format_rate(h.memory_bandwidth), format_rate(h.inside.bandwidth),
               str(h.topology().nics, " × ", format_rate(h.between.bandwidth)), str(h.per_node),
               h.software});
  }
  return table.text();
}

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
  const planner::RunConfig& q = first->question;
  const bool timed = slowest > 0;
  std::string text =
      str(q.state_only() ? format_count(q.params) + " parameters"
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
