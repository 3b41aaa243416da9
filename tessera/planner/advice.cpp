#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

using Lines = std::vector<std::string>;

std::string size(double bytes) { return format_bytes(std::llround(bytes)); }
std::string percent(double share) { return str(std::round(1000 * share) / 10, "%"); }

// The question with a change, and what it would need.
struct Instead {
  Question question;
  double total;
  bool fits;
};
Instead instead(const Question& q, const std::function<void(Question&)>& change) {
  Question other = q;
  change(other);
  const double total = memory_of(other).total();
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

// The least change that makes it fit, in the order of what it costs.
std::string what_would_fit(const Question& q) {
  if (q.dp > 1) {
    for (int stage = q.zero + 1; stage <= 3; ++stage) {
      const Instead other = at_stage(q, stage);
      if (other.fits) return str("--zero ", stage, " fits: ", of_usable(other.total, q));
    }
  }
  if (q.state_only()) {
    const double least = memory_of(q).total() / usable_memory(q.hardware);
    return str("cut the model over at least ", std::ceil(least * q.tp * q.pp),
               " GPUs with --tp and --pp",
               q.zero < 3 ? ", or shard it with --zero 3 and more --dp" : ", or raise --dp");
  }
  if (q.attention == Attention::unfused) {
    const Instead other = instead(q, [](Question& o) { o.attention = Attention::fused; });
    if (other.fits) return str("--attention fused fits: ", of_usable(other.total, q));
  }
  for (const Recompute what : {Recompute::selective, Recompute::full}) {
    if (q.recompute >= what) continue;
    const Instead other = recomputing(q, what);
    if (other.fits) {
      return str("--checkpoint-activations ", name(what), " fits: ", of_usable(other.total, q));
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
  const Instead all = instead(q, [](Question& o) {
    if (o.dp > 1) o.zero = 3, o.grad_reduce.reset();
    o.recompute = Recompute::full;
    o.attention = Attention::fused;
  });
  if (all.fits) {
    return str(q.dp > 1 && q.zero < 3 ? "--zero 3 with " : "",
               "--checkpoint-activations full fits: ", of_usable(all.total, q));
  }
  return str("cut the model over more GPUs: --tp up to ", q.per_node,
             " inside a host, then --pp across hosts",
             q.dp == 1 ? ", or shard it with --zero 3 and --dp" : "");
}

void about_memory(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (!plan.fits) {
    out.push_back(str("does not fit: ", of_usable(plan.memory.total(), q), " on pipeline rank ",
                      plan.rank, ", ", size(-plan.margin), " too much; ", what_would_fit(q)));
  }
  if (q.recompute == Recompute::full && plan.fits) {
    const Instead none = recomputing(q, Recompute::none);
    if (none.fits) {
      out.push_back(str("recomputing everything is not needed: without it ",
                        of_usable(none.total, q),
                        ", and the forward pass runs once instead of twice (a quarter of the "
                        "arithmetic less)"));
    }
  }
  if (q.recompute == Recompute::selective && q.attention == Attention::fused) {
    out.push_back(
        "selective recomputation saves nothing here: fused attention already keeps no scores");
  }
  if (q.tp > 1 && !q.sequence_parallel && !q.state_only()) {
    const Instead cut = instead(q, [](Question& o) { o.sequence_parallel = true; });
    const double saved = plan.memory.total() - cut.total;
    if (saved > 0.05 * plan.memory.total()) {
      out.push_back(
          str("--sequence-parallel would free ", size(saved), " and send the same bytes"));
    }
  }
  if (q.pp > 1 && q.schedule == "gpipe" && q.micros() > q.pp) {
    out.push_back(str("gpipe holds the activations of all ", q.micros(), " micro-batches (",
                      size(plan.memory.activations), "); 1f1b has the same bubble and holds ",
                      q.pp));
  }
  if (q.layout.master == 0 && q.layout.name == "bf16-nomaster") {
    out.push_back("bf16-nomaster has no fp32 copy: it trains well only with stochastic rounding");
  }
}

void about_stage(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.dp == 1) {
    if (q.zero > 0) out.push_back(str("--zero ", q.zero, " shards over dp 1, that is not at all"));
    return;
  }
  const double sent = plan.traffic.dp;
  const auto sends = [&](int stage) { return traffic_of(at_stage(q, stage).question).dp; };
  if (q.zero == 3) {
    const Instead two = at_stage(q, 2);
    if (two.fits) {
      out.push_back(str("stage 3 sends ", size(sent), " where stage 2, which fits with ",
                        of_usable(two.total, q), ", sends ", size(sends(2))));
    } else if (q.pp == 1 && !q.state_only()) {
      const double boundary = 2 * real(q.micros()) * real(q.seq) * real(q.micro_batch) *
                              real(q.model.hidden) * element_bytes(q);
      out.push_back(str("stage 3 or a pipeline? Stage 3 sends ", size(sent),
                        " of weights and gradients; a pipeline boundary would send ",
                        size(boundary), " of activations"));
    }
  } else if (q.zero == 0) {
    const double freed = plan.memory.total() - at_stage(q, 1).total;
    out.push_back(str("stage 1 would free ", size(freed), " and send ", size(sends(1)),
                      " instead of ", size(sent)));
  }
  if (q.zero == 2 && q.micros() > 1 && q.policy() == ReducePolicy::each) {
    const Instead one = at_stage(q, 1);
    out.push_back(
        str("with ", q.micros(), " micro-batches stage 2 sends ", size(sent), ", stage 1 sends ",
            size(sends(1)),
            one.fits ? " and fits with " : " but does not fit: ", of_usable(one.total, q)));
  }
  if (q.zero >= 2 && q.policy() == ReducePolicy::last) {
    const Instead each = instead(q, [](Question& o) { o.grad_reduce = ReducePolicy::each; });
    out.push_back(str("--grad-reduce last keeps whole gradients at stage ", q.zero, ": ",
                      size(plan.memory.grads), " and ", size(plan.traffic.dp_last),
                      " sent; --grad-reduce each needs ",
                      size(each.total - plan.memory.total() + plan.memory.grads), " and sends ",
                      size(plan.traffic.dp_each)));
  }
  if (!q.overlap_grad_reduce && plan.time.dp > 0) {
    out.push_back(str("reductions that wait for the end of backward serialise the step: ",
                      format_time(plan.time.dp), " of ", format_time(plan.time.step()),
                      " is exposed; --overlap-grad-reduce hides what backward can hide"));
  }
}

void about_cuts(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.tp > q.per_node) {
    out.push_back(str("tp ", q.tp, " goes across hosts of ", q.per_node,
                      " GPUs: ", size(plan.traffic.tp), " a step over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth),
                      "; keep tp inside a host and put pp "
                      "or dp across"));
  }
  if (q.pp > 1) {
    const double bubble = bubble_fraction(q.pp, static_cast<int>(q.micros()), q.chunks);
    const std::string numbers = str(q.micros(), " micro-batches for ", q.pp, " stages idle ",
                                    percent(bubble), " of the time");
    if (q.micros() < q.pp) {
      out.push_back(str(numbers, ": fewer than stages, so some are always empty; at least ", q.pp,
                        " keep all busy, ", 19 * (q.pp - 1), " bring it to 5%"));
    } else if (bubble > 0.1 && q.schedule != "zb-h1" && q.schedule != "zb-v") {
      out.push_back(str(numbers, "; ", 19 * (q.pp - 1) / q.chunks,
                        " would bring it to 5%, or more --chunks with interleaved"));
    }
    const bool even = q.model.layers % (std::int64_t{q.pp} * q.chunks) == 0;
    if (!q.state_only() && q.split == "even" && !even) {
      out.push_back(str(q.model.layers, " layers do not divide over ", q.pp * q.chunks,
                        " stages: the first ones have one more, and the rest wait for them"));
    }
  }
  if (q.tp > 1 && !q.state_only() && q.model.vocab % q.tp != 0) {
    out.push_back(str("the vocabulary of ", q.model.vocab, " does not divide by tp ", q.tp,
                      "; --pad-vocab makes it ", padded_vocab(q.model.vocab, 128LL * q.tp)));
  }
  if (q.sequence_parallel && q.tp == 1) {
    out.push_back("--sequence-parallel cuts along tp, which is 1: nothing is cut");
  }
  const std::int64_t there = std::int64_t{q.nodes} * q.per_node;
  if (q.nodes > 1 && there > q.world()) {
    out.push_back(str(there - q.world(), " of ", there, " GPUs have nothing to do"));
  }
  if (plan.parameters > 100e9 && q.tp == 1 && q.world() > 1) {
    out.push_back(
        str(format_count(std::llround(plan.parameters)),
            " parameters: from 100B on take stage 3 with tp inside a host, and pp across"));
  }
  if (!q.model.name.empty() && q.model.positions > find_model_shape(q.model.name).positions) {
    out.push_back(str(q.model.name, " knows ", find_model_shape(q.model.name).positions,
                      " positions; its table was grown to ", q.model.positions));
  }
}

}  // namespace

std::vector<std::string> advice_for(const Plan& plan) {
  Lines out;
  about_memory(plan, out);
  about_stage(plan, out);
  about_cuts(plan, out);
  return out;
}

std::string remedy_for(const Plan& plan) {
  const Question& q = plan.question;
  switch (plan.bound) {
    case Bound::memory: return what_would_fit(q);
    case Bound::network: {
      const StepTime& t = plan.time;
      const std::string share = str(percent(t.exposed() / t.step()), " of the step waits for it: ");
      if (t.tp >= std::max(t.dp, t.pp)) {
        return str(share, "less --tp, or tp inside a host");
      }
      if (t.pp >= t.dp) return str(share, "fewer --chunks, a larger --micro-batch or less --pp");
      return str(share, q.zero == 3 ? "a lower --zero, " : "",
                 q.overlap_grad_reduce ? "" : "--overlap-grad-reduce, ",
                 "more accumulation between reductions, or faster links");
    }
    case Bound::compute:
      return q.recompute == Recompute::full ? "less recomputation, then more GPUs with --dp"
                                            : "more GPUs with --dp";
  }
  return "";
}

}  // namespace tessera::planner
