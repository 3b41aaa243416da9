#include "tessera/planner/remedy.h"

#include <algorithm>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/software.h"

namespace tessera::planner {
namespace {

// A pipeline that idles more than this is told so, rather than to take more GPUs.
constexpr double kMuchBubble = 0.3;
// Less than this of a step is nothing to change flags for.
constexpr double kRealShare = 0.02;
// Of what no step takes less than.
constexpr double kRounding = 1e-9;

// Where what is no state is too much already, which no sharding of state helps.
std::string less_in_flight(const Question& q, double rest) {
  std::string text = str("activations and temporaries alone are ", of_usable(rest, q), ": ");
  if (q.recompute != Recompute::full) text += "--recompute full, ";
  if (q.micro_batch > 1) text += "--micro-batch 1, ";
  if (q.tp() < q.per_node) {
    text += str("--tp up to ", q.per_node, " with --sequence-parallel, ");
  } else if (q.tp() > 1 && !q.sequence_parallel) {
    text += "--sequence-parallel, ";
  }
  return text + "a shorter --seq, and then what cuts the state: --pp, or --zero 3 over more --dp";
}

// Of the model, if nothing is known of activations or if they are not what is too much.
std::string over_more_gpus(const Question& q) {
  const Memory memory = memory_of(q);
  const double rest = needed_memory(q) - memory.params - memory.grads - memory.optimizer;
  if (rest > usable_memory(q.hardware)) return less_in_flight(q, rest);
  const bool more_tp = q.tp() < q.per_node;
  std::string text = "cut the model over more GPUs: ";
  if (more_tp) text += str("--tp up to ", q.per_node, " inside a host, then ");
  text += str("--pp across hosts");
  if (q.dp() == 1) return text + ", or shard it with --zero 3 and --dp";
  return text + (q.zero == 3 ? ", or raise --dp" : "");
}

// Whether faster links would help, and how much: not where steps of a collective or launches count.
std::string links_remedy(const Plan& plan) {
  const Question& q = plan.question;
  Question faster = q;
  faster.hardware.inside.bandwidth *= 2;
  faster.hardware.between.bandwidth *= 2;
  const Step step = describe_step(faster);
  const double now = plan.time.step(), little = kRealShare * now;
  if (now - least_step_time(step) * (1 - kRounding) < little) return "";
  const double saved = now - step_time(step).step();
  if (saved < little) return "";
  return str("links twice as fast would save ", format_time(saved), " (",
             percent(saved / plan.time.step()), ")");
}

// Tokens a second, as a multiple of now, with a change that alters the batch or the devices too; 0
// if it cannot be, or gains too little to be told.
double gained(const Plan& plan, const std::function<void(Question&)>& change) {
  try {
    Question other = plan.question;
    change(other);
    other = settle(other);
    if (needed_memory(other) > usable_memory(other.hardware)) return 0;
    const Step step = describe_step(other);
    const double tokens = real(other.global_batch) * real(other.seq);
    const auto rate = [&](double seconds) {
      return seconds > 0 && plan.tokens_per_s > 0 ? tokens / seconds / plan.tokens_per_s : 0;
    };
    const double least = least_step_time(step) * (1 - kRounding);
    if (least > 0 && rate(least) < 1 + kRealShare) return 0;
    const double then = step_time(step).step(), times = rate(then);
    if (times < 1 + kRealShare) return 0;
    // Time of its tokens at the present rate.
    const double by = times * then / plan.time.step();
    const Interval now{by * plan.interval.low, by * plan.interval.high, ""};
    const Interval interval = step_interval(other, then);
    return indistinguishable(by * plan.time.step(), now, then, interval) ? 0 : times;
  } catch (const UsageError&) {  // it cannot be
    return 0;
  }
}

// A larger global batch between synchronisations.
std::string accumulation_remedy(const Plan& plan) {
  const Question& q = plan.question;
  const double more = gained(plan, [](Question& o) { o.grad_accum *= 4, o.global_batch *= 4; });
  if (more == 0) return "";
  return str("--grad-accum ", q.grad_accum * 4, ", a global batch of ", q.global_batch * 4,
             ", trains ", fixed(more, 2), " times as many tokens a second");
}

std::string network_remedy(const Plan& plan) {
  std::vector<std::string> ways;
  for (const Advice& advice : plan.advice) {
    if (!advice.faster) continue;
    ways.push_back(advice.text);
    break;
  }
  for (std::string way : {accumulation_remedy(plan), links_remedy(plan)}) {
    if (!way.empty()) ways.push_back(std::move(way));
  }
  return ways.empty() ? "no flag gains more than a prediction can tell, and no faster link 2%: "
                        "fewer GPUs for this batch"
                      : join(ways, "; ");
}

std::string more_devices(const Plan& plan) {
  const Question& q = plan.question;
  const double twice = gained(plan, [](Question& o) {
    o.axes.set_dp(o.dp() * 2);
    o.gpus = o.nodes = 0;
    o.global_batch *= 2;
  });
  const std::string text =
      str("more ", q.software == Software::tessera ? "ranks" : "GPUs", " with --dp");
  if (twice == 0) return text;
  return str(text, ": --dp ", 2 * q.dp(), " trains ", fixed(twice, 2),
             " times as many tokens a second");
}

}  // namespace

Instead instead(const Question& q, const std::function<void(Question&)>& change) {
  Question other = q;
  change(other);
  const double total = needed_memory(other);
  const bool fits = total <= usable_memory(q.hardware);
  return {other, total, fits, fits && !newly_lacks(other, q)};
}
Instead at_stage(const Question& q, int stage) {
  return instead(q, [&](Question& other) {
    other = other.at_stage(stage);
    other.grad_reduce.reset();
  });
}
Instead recomputing(const Question& q, Recompute what) {
  return instead(q, [&](Question& other) { other.recompute = what; });
}

std::string of_usable(double total, const Question& q) {
  return str(size(total), " of ", size(usable_memory(q.hardware)));
}

std::string least_change_that_fits(const Question& q) {
  for (int fewer = q.replicas() - 1; fewer >= 1; --fewer) {
    if (q.replicas() % fewer != 0) continue;
    const Instead other =
        instead(q, [&](Question& o) { o.axes.set_given(Axis::dp_replicate, fewer); });
    if (other.runs) {
      return str("--dp-replicate ", fewer, " fits: ", of_usable(other.total, q), ", sharded over ",
                 other.question.shards(), " ranks instead of ", q.shards());
    }
  }
  if (q.dp() > 1) {
    for (int stage = q.zero + 1; stage <= 3; ++stage) {
      const Instead other = at_stage(q, stage);
      if (other.runs) {
        return str("--zero ", stage, " fits: ", of_usable(other.total, q),
                   new_stage_in_software(other.question, q));
      }
    }
  }
  const bool fuses = q.attention == Attention::unfused && q.hardware.fused_attention;
  if (fuses) {
    const Instead other = instead(q, [](Question& o) { o.attention = Attention::fused; });
    if (other.runs) return str("--attention fused fits: ", of_usable(other.total, q));
  }
  for (const Recompute what : {Recompute::selective, Recompute::full}) {
    if (q.recompute >= what) continue;
    const Instead other = recomputing(q, what);
    if (other.runs) {
      return str("--recompute ", name(what), " fits: ", of_usable(other.total, q));
    }
  }
  for (std::int64_t b = q.micro_batch / 2; b >= 1; b /= 2) {
    if (q.micro_batch % b != 0) continue;
    const Instead other = instead(q, [&](Question& o) {
      o.grad_accum = q.grad_accum * (q.micro_batch / b);
      o.micro_batch = b;
    });
    if (other.runs) {
      return str("--micro-batch ", b, " with --grad-accum ", other.question.grad_accum,
                 " fits and keeps the global batch: ", of_usable(other.total, q));
    }
  }
  const Instead all = instead(q, [&](Question& o) {
    if (o.dp() > 1) o.zero = 3, o.grad_reduce.reset();
    o.recompute = Recompute::full;
    if (fuses) o.attention = Attention::fused;
    o.grad_accum = q.grad_accum * q.micro_batch;
    o.micro_batch = 1;
  });
  if (!all.runs) return "";
  std::vector<std::string> flags;
  if (q.dp() > 1 && q.zero < 3) flags.emplace_back("--zero 3");
  if (q.recompute != Recompute::full) flags.emplace_back("--recompute full");
  if (q.zero >= 2 && q.policy() == ReducePolicy::last) flags.emplace_back("--grad-reduce each");
  if (fuses) flags.emplace_back("--attention fused");
  if (q.micro_batch > 1) {
    flags.push_back(str("--micro-batch 1 --grad-accum ", all.question.grad_accum));
  }
  return str(join(flags, " "), " fits: ", of_usable(all.total, q),
             new_stage_in_software(all.question, q));
}

std::string what_would_fit(const Question& q) {
  if (std::string change = least_change_that_fits(q); !change.empty()) return change;
  const double state = memory_of(q).total(), usable = usable_memory(q.hardware);
  if (!q.state_only() || state <= usable) return over_more_gpus(q);
  return str("cut the model over at least ", std::ceil(state / usable * q.tp() * q.pp()),
             " GPUs with --tp inside a host and --pp across hosts",
             q.zero < 3 ? ", or shard it with --zero 3 and more --dp" : ", or raise --dp");
}

std::string remedy_for(const Plan& plan) {
  const Question& q = plan.question;
  const StepTime& t = plan.time;
  switch (plan.bound) {
    case Bound::memory: return what_would_fit(q);
    case Bound::network:
      return str(percent(t.exposed() / t.step()),
                 " of the step waits for it: ", network_remedy(plan));
    case Bound::compute: break;
  }
  if (t.step() > 0 && t.bubble > kMuchBubble * t.step()) {
    return str(percent(t.bubble / t.step()), " of the step is bubble: more micro-batches (now ",
               q.micros(), " for ", q.pp(), " stages) with a larger --global-batch",
               q.micro_batch > 1 ? " or a smaller --micro-batch" : "", ", or less --pp");
  }
  if (q.state_only()) return "give --model, or --layers --hidden --heads";
  if (plan.advice.empty() || !plan.advice.front().faster) return more_devices(plan);
  return str(plan.advice.front().text, ", then more ",
             q.software == Software::tessera ? "ranks" : "GPUs", " with --dp");
}

}  // namespace tessera::planner
