#include "tessera/cli/explain_topics.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/axis_words.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/rank_load.h"
#include "tessera/schedule/schedule.h"

namespace tessera::cli {
namespace {

using planner::real;
using planner::RunConfig;

std::string bytes_text(double bytes) { return format_bytes(std::llround(std::min(bytes, 9e18))); }
std::string whole_text(double value) { return format_grouped(std::llround(value)); }
std::string share_text(double value) { return fixed(100 * value, 1) + "%"; }

std::string explain_batch(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  return str("global batch = micro-batch · accumulation · dp\n             = ", q.micro_batch,
             " · ", q.grad_accum, " · ", q.dp(), " = ", format_grouped(q.global_batch),
             " sequences\n",
             q.seq == 0 ? "tokens       = global batch · sequence length, which --params does not "
                          "define: give --seq"
                        : str("tokens       = global batch · sequence length\n             = ",
                              format_grouped(q.global_batch), " · ", q.seq, " = ",
                              format_grouped(q.global_batch * q.seq)),
             "\n\nThree levers: the micro-batch is limited by memory, dp by the number of GPUs, "
             "accumulation\nonly by time, since its micro-batches run one after another. Use as "
             "much dp as possible,\nand accumulation for the rest.\n"
             "Ranks with unequal batches weight their gradients by tokens: a plain mean over ranks "
             "is\ncorrect only for equal batches.\n");
}

// Formula of the state of `psi` parameters, of which `experts` are sharded over fewer ranks.
std::string state_steps(const RunConfig& q, double psi, double experts) {
  const Sharding cut = sharding_of_stage(q.zero);
  const bool grads = cut.grads && q.policy() == ReducePolicy::each;
  Table table("lrrrr");
  double sum = 0;
  const auto lines = [&](const char* whose, double params, int shards) {
    const auto line = [&](const char* name, double each, bool sharded, bool in_memory = true) {
      const double bytes = params * each / (sharded ? shards : 1);
      if (in_memory) sum += bytes;
      table.row({str(name, whose), str(each, " B"), str("· ", whole_text(params)),
                 sharded ? str("/ ", shards) : "", "= " + bytes_text(bytes)});
    };
    line("params", q.layout.param, cut.params);
    line("grads", q.layout.grad, grads);
    line(q.offloads_optimizer() ? "optimizer (in files)" : "optimizer", q.layout.optimizer(),
         cut.optimizer, !q.offloads_optimizer());
  };
  lines("", psi - experts, q.shards());
  if (experts > 0) lines(" of experts", experts, q.expert_shards());
  table.row({"state", "", "", "", "= " + bytes_text(sum)});
  return table.text();
}

// Describes what --params does not define.
std::string assumed_text(const planner::Plan& plan) {
  if (!plan.assumed) {
    return "\nActivations, buffers and temporaries are unknown without the model's sizes, and not "
           "counted.\n";
  }
  const planner::Memory& m = plan.assumed->memory;
  const ModelShape& shape = plan.assumed->model;
  return str("\nUnknown from the parameter count, and estimated for a GPT of ", shape.layers,
             " layers, hidden ", shape.hidden, ", ", shape.heads, " heads, seq ", plan.assumed->seq,
             ":\n  activations ~ ", bytes_text(m.activations), ", buffers ~ ",
             bytes_text(m.buffers), ", temporary ~ ", bytes_text(m.temporary), "\n");
}

std::string explain_memory(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  const planner::Memory& m = a.plan.memory;
  const std::vector<planner::StageLayers> chunks =
      chunk_layers(q)[static_cast<std::size_t>(a.plan.rank)];
  const double psi = params_on_rank(q, chunks);
  std::string text = str(
      "State: layout ", q.layout.name, ", ZeRO stage ", q.zero, ", ",
      q.axes.words(" · ", kShardAxes), "\n  parameters on a rank = ", whole_text(a.plan.parameters),
      " cut by ", q.axes.words(" · ", {Axis::tp, Axis::pp}),
      q.ep() > 1 ? str(", experts by ep ", q.ep()) : "",
      q.cp() > 1 ? " (never by dp or cp) -> " : " (never by dp) -> ", whole_text(psi), "\n",
      state_steps(q, psi, q.state_only() ? 0 : experts_on_rank(q, chunks)));
  if (q.software == planner::Software::tessera && !q.state_only()) {
    text +=
        str("\nActivations, tensor by tensor as Tessera's layers keep them (recomputed: ",
            name(q.recompute), "): ", bytes_text(m.activations), " for ", in_flight(q, a.plan.rank),
            " in flight\nBuffers (gathered units, buckets, "
            "pipeline)  ",
            bytes_text(m.buffers), "\nTemporary (gradients of the loss or of a layer)  ",
            bytes_text(m.temporary), "\nNot at once (backward frees activations)  -",
            bytes_text(m.not_at_once), "\n");
  } else if (!q.state_only()) {
    const double sbh = real(q.rank_tokens()) * real(q.micro_batch) * real(q.model.hidden);
    const double layer = layer_activations(q);
    const std::int64_t held = in_flight(q, a.plan.rank);
    std::int64_t layers = 0;
    for (const auto& chunk : chunks) layers = std::max(layers, chunk.layers);
    text += str(
        "\nActivations: a layer keeps s·b·h · c bytes, c = ", fixed(layer / sbh, 2),
        " here (recomputed: ", name(q.recompute), ")\n  s·b·h = ", q.rank_tokens(), " · ",
        q.micro_batch, " · ", q.model.hidden, " = ", whole_text(sbh), "; a layer ",
        bytes_text(layer), "\n  ", layers, " layers · ", held, " in flight (", q.schedule, ", pp ",
        q.pp(), ", ", q.grad_accum,
        q.grad_accum == 1 ? " micro-batch) = " : " micro-batches) = ", bytes_text(m.activations),
        "\n\nBuffers (gathered units, buckets, pipeline)  ", bytes_text(m.buffers),
        "\nTemporary (logits in 16 and 32 bits and their gradient, or a layer's backward, "
        "and the runtime)  ",
        bytes_text(m.temporary), "\n");
  }
  if (q.state_only()) text += assumed_text(a.plan);
  const char* verdict = !a.plan.fits        ? "does not fit\n"
                        : !a.plan.fit_known ? "the state alone fits\n"
                        : q.state_only()    ? "fits, by this estimate\n"
                                            : "fits\n";
  return text + str("\nTotal  ", bytes_text(a.plan.needed()), "; ", q.hardware.name, " can fill ",
                    bytes_text(usable_memory(q.hardware)), ": ", verdict,
                    "\nCommon mistakes: stage 1 is p + g + o/N and stage 2 is p + (g + o)/N bytes "
                    "per parameter,\nnot 8 + 4/N and 4 + 8/N. Every rank has its shard: 70B at "
                    "stage 3 over 8 is 105 GB each\n(12 B per parameter), not 105 GB in total.\n");
}

std::string explain_traffic(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  const planner::Traffic& t = a.plan.traffic;
  const double k = real(q.grad_accum);
  const planner::SentParams most = q.state_only() ? planner::SentParams() : most_sent_params(q);
  const double dg_bytes = a.plan.on_a_rank * q.layout.grad;
  const bool each = q.policy() == ReducePolicy::each;
  const std::string times = each ? str(q.grad_accum, "·") : "";
  const double reductions = each ? k : 1, gathers = q.zero < 3 ? 1 : k * (q.keep_params ? 1 : 2);
  const auto passed = [&](double params) {
    const double grad_bytes = params * q.layout.grad;
    return q.zero == 0 ? 2 * reductions * grad_bytes
                       : reductions * grad_bytes + gathers * params * q.layout.param;
  };
  std::string formula;
  if (q.zero == 0) formula = str("2·", times, "D_g");
  if (q.zero == 1 || q.zero == 2) formula = str(times, "D_g + D_p");
  if (q.zero == 3) formula = str(times, "D_g + ", gathers, "·D_p");
  std::string text = str(
      "A ring sends (N-1)/N of a buffer in a reduce-scatter and in an all-gather; an all-reduce is "
      "one\nof each, which is where its 2 comes from.\n\n");
  const auto add = [&](const char* who, int ranks, double params, double sent) {
    text +=
        str(who, ": N = ", ranks, ", D_p = ", bytes_text(params * q.layout.param),
            " of parameters, D_g = ", bytes_text(params * q.layout.grad), " of gradients, stage ",
            q.zero, "\n  (N-1)/N · (", formula, ") = ", fixed(1 - 1.0 / ranks, 4), " · ",
            bytes_text(passed(params)), " = ", bytes_text(sent), " sent per rank and step\n");
  };
  const char* const dp = q.cp() > 1 ? "dp and cp together" : "dp";
  if (most.trained_experts == 0) {
    add(dp, q.shards(), a.plan.on_a_rank, t.sent[Axis::dp_shard]);
  } else {
    // Those of the stage with the most of each.
    const double experts = (1 - 1.0 / q.expert_shards()) * passed(most.trained_experts);
    add(dp, q.shards(), most.trained, t.sent[Axis::dp_shard] - experts);
    add("experts, over the ranks with the same ones", q.expert_shards(), most.trained_experts,
        experts);
  }
  if (q.replicas() > 1) {
    const double r = q.replicas();
    // Bytes of the sums of a rank.
    const double summed =
        most.trained_experts == 0
            ? dg_bytes / q.shards()
            : (most.trained / q.shards() + most.trained_experts / q.expert_shards()) *
                  q.layout.grad;
    text +=
        str("dp_replicate: R = ", q.replicas(), " replicas hold the same shards and all-reduce ",
            "their sums\n  2(R-1)/R · ", times, "D_g/N = ", fixed(2 * (r - 1) / r, 4), " · ",
            bytes_text(reductions * summed), " = ", bytes_text(t.sent[Axis::dp_replicate]),
            " sent per rank and step\n");
  }
  if (t.dp_each != t.dp_last) {
    text += str("  reduced each micro-batch ", bytes_text(t.dp_each), ", once ",
                bytes_text(t.dp_last), "\n");
  }
  Table table("llrr");
  for (const planner::TrafficRow& row : t.rows) {
    if (kDataAxes.contains(row.axis)) continue;
    table.row({std::string(axis_name(row.axis)), row.what, whole_text(row.calls) + " ×",
               bytes_text(row.bytes)});
  }
  text += table.text();
  return text + str("total  ", bytes_text(t.total()),
                    "\n\nCommon mistakes: ZeRO-3 sends 1.5 times as much as plain data "
                    "parallelism, not less and not\n3 times. Tensor parallelism sends activations "
                    "(b·s·h), not weights. Some count an all-reduce\nas D instead of 2·D: the "
                    "numbers here are bytes sent per rank.\n");
}

std::string explain_ring(const ExplainArguments& a) {
  const double d = static_cast<double>(a.bytes), n = a.ranks;
  const double time = planner::ring_all_reduce_time(d, a.ranks, a.bandwidth, a.latency);
  return str("T = 2(N-1)/N · D/B + 2(N-1)·α\n  = 2·", a.ranks - 1, "/", a.ranks, " · ",
             bytes_text(d), " / ", format_rate(a.bandwidth), " + ", 2 * (a.ranks - 1), " · ",
             format_time(a.latency), "\n  = ", fixed(2 * (n - 1) / n, 4), " · ",
             format_time(d / a.bandwidth), " + ", format_time(2 * (n - 1) * a.latency),
             "\n  = ", format_time(time), "\n\nEach rank sends ",
             bytes_text(planner::ring_all_reduce_bytes(d, a.ranks)), " in ", 2 * (a.ranks - 1),
             " steps of D/N = ", bytes_text(d / n),
             ".\n\nCommon mistake: B is one direction. NVLink's 600 GB/s counts both; a ring "
             "gets 300 each way.\n");
}

std::string explain_overlap(const ExplainArguments& a) {
  const double left = planner::exposed(a.transfer, a.hiding);
  const double n = a.ranks;
  return str(
      "exposed = max(0, transfer - computation that can hide it)\n        = max(0, ",
      format_time(a.transfer), " - ", format_time(a.hiding), ") = ", format_time(left),
      "\n\nBackward runs from the last layer to the first, so the last layers' gradients are "
      "ready first\nand are sent while the rest is computed; those of the first layers cannot be "
      "hidden.\n\nThe simple law of scaling, ",
      share_text(a.overhead),
      " for each doubling:\n  efficiency(N) = 1 / (1 + c·log2 N) = 1 / (1 "
      "+ ",
      fixed(a.overhead, 3), " · ", fixed(std::log2(n), 2),
      ") = ", share_text(planner::scaling_efficiency(n, a.overhead)), " at N = ", a.ranks, "; ",
      fixed(n * planner::scaling_efficiency(n, a.overhead), 2),
      " times one GPU\nIt ignores overlap and links; `tessera simulate` models them.\n");
}

// Names the K at which the bubble is 5% of the step, and from which it is less.
std::string five_percent(int p, int v) {
  const std::int64_t slots = 19LL * (p - 1);  // (P-1) / (v·K + P-1) = 1/20
  const std::int64_t below = slots / v + 1;
  return slots % v == 0 ? str("5% at K = ", slots / v, ", less from K = ", below, " on")
                        : str("less than 5% from K = ", below, " on");
}

std::string bubble_text(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  const int p = q.pp(), k = static_cast<int>(q.grad_accum), v = q.chunks;
  if (p == 1) {
    return "A pipeline of one stage (--pp 1) never waits for another: bubble = 0 for every K.\n"
           "Use --pp 2 or more.\n";
  }
  if (q.schedule == ScheduleChoice::zb_h1 || q.schedule == ScheduleChoice::zb_v) {
    if (!(a.forward + a.backward > 0)) {
      throw UsageError("--forward, --backward: got 0 for both; one must be greater than 0");
    }
    const double share_of_rank = 1.0 / v;
    const auto timing = schedule::time(schedule::make(q.schedule, p, k, v),
                                       {a.forward * share_of_rank, a.backward / 2 * share_of_rank,
                                        a.backward / 2 * share_of_rank});
    return str("bubble of ", q.schedule, " with P = ", p, " stages and K = ", k,
               " micro-batches, simulated action by action: ", share_text(timing.bubble), "\n",
               "(1f1b: (P-1) / (K + P-1) = ", share_text(planner::bubble_fraction(p, k)),
               ")\n\nstep = ", format_time(timing.step), " for T_f ", format_time(a.forward),
               " and T_b ", format_time(a.backward), " of a rank, half of it for the weights");
  }
  return str(
      "bubble = (P-1) / (v·K + P-1), with P stages, K micro-batches, v chunks on a rank\n"
      "       = ",
      p - 1, " / (", v, "·", k, " + ", p - 1, ") = ", share_text(planner::bubble_fraction(p, k, v)),
      "\n", five_percent(p, v), "\n\nstep = (K + P-1) · (T_f + T_b)", v > 1 ? " for v = 1" : "",
      "\n     = ", k + p - 1, " · (", format_time(a.forward), " + ", format_time(a.backward),
      ") = ", format_time(planner::pipeline_time(p, k, a.forward, a.backward)), ", and hops of ",
      format_time(a.hop),
      " where nothing hides them\nspeed-up over one "
      "stage = P·K / (K + P-1) = ",
      fixed(planner::pipeline_speedup(p, k), 2), " of ", p);
}

std::string explain_bubble(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  if (!q.pipelined()) return bubble_text(a);
  return str(bubble_text(a), "\n\nHeld on the first rank: ", in_flight(q, 0),
             in_flight(q, 0) == 1 ? " activation with " : " activations with ", q.schedule,
             "; gpipe would hold ", q.grad_accum,
             "\n\nCommon mistake: each slot costs T_f + T_b, not the larger of the two.\n");
}

std::string explain_step(const ExplainArguments& a) {
  const RunConfig& q = a.plan.question;
  const planner::StepTime& t = a.plan.time;
  if (q.state_only()) {
    return "The parameter count alone does not define the time of a step; use --model, or --layers "
           "--hidden --heads.\n";
  }
  const double peak = q.hardware.product_peak(q.layout.param);
  const double ideal = a.plan.model_flops / (q.world() * peak);
  Table table("lrl");
  table.row({"compute", format_time(t.compute),
             str("forward, backward and recomputation (", name(q.recompute), ") of a rank")});
  for (const Axis axis : kTableAxes) {
    if (is_optional(axis) && q.axes.size(axis) == 1) continue;
    table.row({str("waiting for ", axis_title(axis)), format_time(t.comm[axis]),
               planner::words_of(axis).exposed});
  }
  table.row({"bubble", format_time(t.bubble), "waiting for other stages"});
  table.row({"optimizer", format_time(t.optimizer), ""});
  table.row({"step", format_time(t.step()), "their sum"});
  const auto flops = [](double value) {
    return value < 1e12 ? fixed(value / 1e9, 1) + " GFLOP" : fixed(value / 1e12, 1) + " TFLOP";
  };
  return str("Arithmetic of a step: 3 · forward = ", flops(a.plan.model_flops),
             "\n  forward per token = 2 · (matrices + head) + 4·s·h for each layer's "
             "attention\nAt the peak of ",
             q.world(), " × ", flops(peak), "/s: ", format_time(ideal), "\n\n", table.text(),
             "\nMFU = ", format_time(ideal), " / ", format_time(t.step()), " = ",
             share_text(a.plan.mfu), "; ", whole_text(a.plan.tokens_per_s), " tokens/s\nBound by ",
             name(a.plan.bound), "; remedy: ", a.plan.remedy, "\n");
}

}  // namespace

const std::vector<ExplainTopic>& explain_topics() {
  static const std::vector<ExplainTopic> all = {
      {"batch", "global batch and tokens of a step", explain_batch},
      {"memory", "bytes on a rank, category by category", explain_memory},
      {"traffic", "bytes a rank sends in a step", explain_traffic},
      {"ring", "time of a ring all-reduce", explain_ring},
      {"overlap", "what computation hides, and the simple law of scaling", explain_overlap},
      {"bubble", "idle time and step time of a pipeline", explain_bubble},
      {"tensor", "time of tensor-parallel all-reduces by bandwidth; by default llama2-7b at tp 8",
       explain_tensor},
      {"context", "sequences shared by ring or ulysses; by default llama3-8b at cp 4",
       explain_context},
      {"experts", "mixtures of experts; by default mixtral-8x7b at ep 8", explain_experts},
      {"limits", "the largest model that fits into a GPU's memory", explain_limits},
      {"step", "where the time of a step goes", explain_step},
  };
  return all;
}

}  // namespace tessera::cli
