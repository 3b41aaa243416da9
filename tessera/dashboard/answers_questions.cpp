// Questions about a plan, with answers from the planner. docs/tutorial.md asks most of them.

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/stages.h"
#include "tessera/schedule/schedule.h"

namespace tessera::dashboard {
namespace {

std::string sized(double bytes) { return format_bytes(std::llround(std::min(bytes, 9e18))); }
double in_gigabytes(double bytes) { return bytes / 1e9; }
std::string percent(double part, double whole) {
  return str(fixed(whole > 0 ? 100 * part / whole : 0, 1), "%");
}

// A numeric answer is right within 2%, since texts are rounded.
Json number_question(const char* id, const char* view, std::string text, const char* unit,
                     double answer, std::string why) {
  return {{"id", id},
          {"view", view},
          {"kind", "number"},
          {"text", text},
          {"unit", unit},
          {"answer", answer},
          {"tolerance", 0.02 * std::abs(answer)},
          {"explanation", why}};
}
Json choice_question(const char* id, const char* view, std::string text,
                     std::vector<std::string> choices, int answer, std::string why) {
  return {{"id", id},           {"view", view},     {"kind", "choice"},  {"text", text},
          {"choices", choices}, {"answer", answer}, {"explanation", why}};
}

void ask_about_state(Json& to, const planner::RunConfig& q,
                     const std::vector<planner::StageAnswer>& stages) {
  const StateLayout& layout = q.layout;
  to.push_back(number_question(
      "bytes", "memory",
      str("How many bytes does training store for each parameter in the layout ", layout.name,
          ", if nothing is sharded?"),
      "bytes", layout.total(),
      str(layout.param, " for the parameter, ", layout.grad, " for its gradient and ",
          layout.optimizer(), " for the optimizer state: ", layout.total(), ".")));
  to.push_back(choice_question(
      "sharded", "memory", str("What does ZeRO stage ", q.zero, " shard?"),
      {"nothing", "the optimizer state", "the optimizer state and the gradients",
       "the optimizer state, the gradients and the parameters"},
      q.zero,
      "Stage 0 is plain data parallelism. Stage 1 shards the optimizer state, stage 2 also the "
      "gradients, stage 3 also the parameters. The stages give the same results."));
  const planner::Memory& own = stages[static_cast<std::size_t>(q.zero)].plan.memory;
  const double state = own.params + own.grads + own.optimizer;
  to.push_back(number_question(
      "state", "memory",
      str("How many GB of parameters, gradients and optimizer state does one GPU store at stage ",
          q.zero, " with ", q.shards(), " shards?"),
      "GB", in_gigabytes(state),
      str("Parameters ", sized(own.params), ", gradients ", sized(own.grads), ", optimizer state ",
          sized(own.optimizer), ": ", sized(state), ".")));
}

void ask_about_stage3(Json& to, const planner::RunConfig& q,
                      const std::vector<planner::StageAnswer>& stages) {
  const double plain = stages[0].sent(), sharded = stages[3].sent();
  if (plain > 0) {
    to.push_back(number_question(
        "stage3-traffic", "collectives",
        "How many times as much as plain data parallelism does stage 3 send along dp?", "times",
        sharded / plain,
        str(sized(sharded), " instead of ", sized(plain),
            " per step. Plain data parallelism sends an all-reduce of the gradients, which has two "
            "halves. Stage 3 gathers the parameters before forward and again before backward, and "
            "reduces the gradients",
            q.micros() > 1 ? str(", for each of the ", q.micros(), " micro-batches.") : ".")));
  }
  const double usable = planner::usable_memory(q.hardware);
  const auto fits = [&](int stage) {
    const double needed = stages[static_cast<std::size_t>(stage)].plan.needed();
    return str("stage ", stage, " needs ", sized(needed), " of ", sized(usable),
               needed <= usable ? " and fits" : " and does not fit");
  };
  to.push_back(choice_question(
      "when-stage3", "memory", "When is ZeRO-3 the right stage?",
      {"always, because it sends least", "when lower stages do not fit in memory",
       "when the step has to be as fast as possible", "only with pipeline parallelism"},
      1,
      str("Stage 3 stores least and sends most, so it is worth its traffic when lower stages do "
          "not fit. With these settings ",
          fits(1), ", ", fits(2), ", and ", fits(3), ".")));
}

void ask_about_batch(Json& to, const planner::RunConfig& q) {
  to.push_back(number_question(
      "batch", "plan",
      str("How many sequences does one step train on, with micro-batches of ", q.micro_batch, ", ",
          q.grad_accum, " of them per step and dp ", q.dp(), "?"),
      "sequences", static_cast<double>(q.global_batch),
      str(q.micro_batch, " × ", q.grad_accum, " × ", q.dp(), " = ", q.global_batch, ".")));
  std::vector<std::string> axes, sizes;
  for (const Axis axis : kPrintedAxes) {
    // Replicas are a part of dp, and expert parallelism adds no GPUs.
    if (axis == Axis::dp_replicate || !multiplies_ranks(axis)) continue;
    if (axis == Axis::cp && q.cp() == 1) continue;
    axes.push_back(str(axis_name(axis), " ", q.axes.given(axis)));
    sizes.push_back(str(q.axes.given(axis)));
  }
  to.push_back(number_question("mesh", "plan",
                               str("How many GPUs does this plan use: ", join(axes, ", "), "?"),
                               "GPUs", q.world(), str(join(sizes, " × "), " = ", q.world(), ".")));
}

void ask_about_communication(Json& to, const planner::RunConfig& q, const planner::Plan& plan) {
  to.push_back(choice_question(
      "buckets", "sync", "Why are gradients reduced in buckets of many parameters?",
      {"one call per parameter would pay its latency many times, and one call for all could not "
       "start before backward ends",
       "buckets send fewer bytes", "buckets make the sum more accurate",
       "the optimizer needs the gradients in buckets"},
      0,
      "The bytes are the same. A call costs its latency, so many small calls are slow. A bucket is "
      "reduced as soon as its gradients are complete, while backward continues with earlier "
      "layers."));
  const double dp = plan.time.comm[Axis::dp_shard] + plan.time.comm[Axis::dp_replicate];
  to.push_back(choice_question(
      "high-dp", "scaling", "What limits a very large dp?",
      {"the parameters no longer fit in memory",
       "the all-reduce takes longer than the backward pass that hides it, and the global batch "
       "grows with dp",
       "each GPU sends a number of bytes that grows with dp", "the bubble grows"},
      1,
      str("A ring sends less than twice the gradients for any number of ranks, but its latency "
          "grows, and a constant global batch leaves each rank less computation to hide it. In "
          "this plan, exposed communication along dp takes ",
          percent(dp, plan.time.step()), " of the step.")));
  if (q.tp() > 1) {
    const double sent = plan.traffic.sent[Axis::tp];
    to.push_back(number_question(
        "tensor", "memory",
        str("How many GB does one GPU send per step for tensor parallelism with tp ", q.tp(), "?"),
        "GB", in_gigabytes(sent),
        str(sized(sent),
            ": activations of every layer, which each GPU has to wait for. Tensor "
            "parallelism therefore stays inside a node, where links are fastest.")));
  }
  if (q.pipelined()) {
    const auto made = schedule::make(q.schedule, q.pp(), static_cast<int>(q.micros()), q.chunks);
    const double bubble = schedule::time(made, {}).bubble;
    to.push_back(number_question(
        "bubble", "pipeline",
        str("What percentage of the time is the bubble of ", name(q.schedule), " with ", q.pp(),
            " stages and ", q.micros(),
            " micro-batches, if each pass takes equally long on all "
            "stages?"),
        "%", 100 * bubble,
        "The last stage waits for the first micro-batch, and the first stage for the last "
        "gradient: (P − 1) / (K + P − 1) for 1F1B with P stages and K micro-batches. More "
        "micro-batches make it smaller."));
  }
}

}  // namespace

Json questions_answer(const Knowledge& known, Ask& ask) {
  const planner::RunConfig q = ask.question(known.catalog, known.limits);
  if (q.state_only()) {
    throw UsageError(Flag("params"), "has no step to ask about; needs a model with a shape");
  }
  const std::vector<planner::StageAnswer> stages = planner::compare_stages(q);
  const planner::Plan plan = planner::plan_numbers(q);
  Json list = Json::array();
  ask_about_state(list, q, stages);
  ask_about_batch(list, q);
  ask_about_communication(list, q, plan);
  ask_about_stage3(list, q, stages);
  return {{"questions", std::move(list)},
          {"batch",
           {{"ranks", q.dp()},
            {"micro_batch", q.micro_batch},
            {"grad_accum", q.grad_accum},
            {"global_batch", q.global_batch},
            {"sent", plan.traffic.sent[Axis::dp_shard] + plan.traffic.sent[Axis::dp_replicate]},
            {"gradients", stages[0].plan.memory.grads}}},
          {"command", ask.command("plan")}};
}

}  // namespace tessera::dashboard
