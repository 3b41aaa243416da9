#include "tessera/planner/remedy.h"

#include <algorithm>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// A pipeline that idles more than this is told so, rather than to take more GPUs.
constexpr double kMuchBubble = 0.3;

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

std::string tensor_parallel_remedy(const Question& q) {
  if (q.tp() > q.per_node) return str("keep tp inside a host: at most --tp ", q.per_node);
  // Half of it on twice the replicas: the same GPUs and global batch.
  const Question& asked = q;
  const bool halves = q.tp() % 2 == 0 && asked.global_batch % (2LL * q.dp()) == 0;
  if (!halves) return "less --tp";
  try {
    const Instead half = instead(q, [](Question& o) {
      o.axes.set("tp", o.tp() / 2);
      o.axes.set("dp", o.dp() * 2);
      if (o.grad_accum % 2 == 0) {
        o.grad_accum /= 2;
      } else {
        o.micro_batch /= 2;
      }
      o = settle(o);
    });
    if (half.fits) {
      return str("--tp ", q.tp() / 2, " with --dp ", 2 * q.dp(),
                 " fits: ", of_usable(half.total, q));
    }
  } catch (const UsageError&) {  // the smaller cut cannot be
  }
  return "less --tp, with what makes it fit then: more --pp, a higher --zero or recomputation";
}

std::string data_parallel_remedy(const Question& q) {
  std::vector<std::string> ways;
  for (int stage = 0; stage < q.zero; ++stage) {
    if (q.zero < 2) break;  // stages 0 and 1 send the same
    if (!at_stage(q, stage).fits) continue;
    ways.push_back(str("--zero ", stage, ", which fits"));
    break;
  }
  if (!q.overlap_grad_reduce) ways.emplace_back("--overlap-grad-reduce");
  if (q.zero > 0 && !q.overlap_param_gather) ways.emplace_back("--overlap-param-gather");
  const bool once = q.policy() == ReducePolicy::last && q.zero < 3;
  ways.emplace_back(once ? "more accumulation between reductions"
                         : "a larger --micro-batch, for fewer of them");
  ways.emplace_back("faster links");
  std::string text = ways.front();
  for (std::size_t i = 1; i < ways.size(); ++i) {
    text += (i + 1 == ways.size() ? ", or " : ", ") + ways[i];
  }
  return text;
}

}  // namespace

Instead instead(const Question& q, const std::function<void(Question&)>& change) {
  Question other = q;
  change(other);
  const double total = needed_memory(other);
  return {other, total, total <= usable_memory(q.hardware)};
}
Instead at_stage(const Question& q, int stage) {
  return instead(q, [&](Question& other) {
    other.zero = stage;
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
  if (q.dp() > 1) {
    for (int stage = q.zero + 1; stage <= 3; ++stage) {
      const Instead other = at_stage(q, stage);
      if (other.fits) return str("--zero ", stage, " fits: ", of_usable(other.total, q));
    }
  }
  if (q.attention == Attention::unfused) {
    const Instead other = instead(q, [](Question& o) { o.attention = Attention::fused; });
    if (other.fits) return str("--attention fused fits: ", of_usable(other.total, q));
  }
  for (const Recompute what : {Recompute::selective, Recompute::full}) {
    if (q.recompute >= what) continue;
    const Instead other = recomputing(q, what);
    if (other.fits) {
      return str("--recompute ", name(what), " fits: ", of_usable(other.total, q));
    }
  }
  for (std::int64_t b = q.micro_batch / 2; b >= 1; b /= 2) {
    if (q.micro_batch % b != 0) continue;
    const Instead other = instead(q, [&](Question& o) {
      o.grad_accum = q.grad_accum * (q.micro_batch / b);
      o.micro_batch = b;
    });
    if (other.fits) {
      return str("--micro-batch ", b, " with --grad-accum ", other.question.grad_accum,
                 " fits and keeps the global batch: ", of_usable(other.total, q));
    }
  }
  const Instead all = instead(q, [&](Question& o) {
    if (o.dp() > 1) o.zero = 3, o.grad_reduce.reset();
    o.recompute = Recompute::full;
    o.attention = Attention::fused;
    o.grad_accum = q.grad_accum * q.micro_batch;
    o.micro_batch = 1;
  });
  if (!all.fits) return "";
  std::vector<std::string> flags;
  if (q.dp() > 1 && q.zero < 3) flags.emplace_back("--zero 3");
  if (q.recompute != Recompute::full) flags.emplace_back("--recompute full");
  if (q.zero >= 2 && q.policy() == ReducePolicy::last) flags.emplace_back("--grad-reduce each");
  if (q.attention == Attention::unfused) flags.emplace_back("--attention fused");
  if (q.micro_batch > 1) {
    flags.push_back(str("--micro-batch 1 --grad-accum ", all.question.grad_accum));
  }
  return str(join(flags, " "), " fits: ", of_usable(all.total, q));
}

std::string what_would_fit(const Question& q) {
  if (std::string change = least_change_that_fits(q); !change.empty()) return change;
  const double state = memory_of(q).total(), usable = usable_memory(q.hardware);
  if (!q.state_only() || state <= usable) return over_more_gpus(q);
  return str("cut the model over at least ", std::ceil(state / usable * q.tp() * q.pp()),
             " GPUs with --tp and --pp",
             q.zero < 3 ? ", or shard it with --zero 3 and more --dp" : ", or raise --dp");
}

std::string remedy_for(const Plan& plan) {
  const Question& q = plan.question;
  const StepTime& t = plan.time;
  switch (plan.bound) {
    case Bound::memory: return what_would_fit(q);
    case Bound::network: {
      const std::string share = str(percent(t.exposed() / t.step()), " of the step waits for it: ");
      if (t.tp >= std::max(t.dp, t.pp)) return share + tensor_parallel_remedy(q);
      if (t.pp >= t.dp) return str(share, q.chunks > 1 ? "fewer --chunks or " : "", "less --pp");
      return share + data_parallel_remedy(q);
    }
    case Bound::compute: break;
  }
  if (t.step() > 0 && t.bubble > kMuchBubble * t.step()) {
    return str(percent(t.bubble / t.step()), " of the step is bubble: more micro-batches (now ",
               q.micros(), " for ", q.pp(), " stages) with a larger --global-batch",
               q.micro_batch > 1 ? " or a smaller --micro-batch" : "", ", or less --pp");
  }
  if (q.state_only()) return "give --model, or --layers --hidden --heads";
  const bool spare = q.recompute == Recompute::full && recomputing(q, Recompute::none).fits;
  return str(spare ? "less recomputation, then " : "", "more ",
             q.software == Software::tessera ? "ranks" : "GPUs", " with --dp");
}

}  // namespace tessera::planner
