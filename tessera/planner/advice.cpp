#include <cmath>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/remedy.h"

namespace tessera::planner {
namespace {

using Lines = std::vector<std::string>;

void about_memory(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (!plan.fits) {
    out.push_back(str("does not fit: ", of_usable(plan.needed(), q),
                      q.pp() > 1 ? str(" on pipeline rank ", plan.rank) : "", ", ",
                      size(-plan.margin), " too much; ", what_would_fit(q)));
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
  if (q.recompute == Recompute::selective && q.attention == Attention::fused &&
      q.software == Software::megatron) {
    out.push_back(
        "selective recomputation saves nothing here: fused attention already keeps no scores");
  }
  if (q.tp() > 1 && !q.sequence_parallel && !q.state_only()) {
    const Instead cut = instead(q, [](Question& o) { o.sequence_parallel = true; });
    const double saved = plan.needed() - cut.total;
    if (saved > 0.05 * plan.needed()) {
      out.push_back(
          str("--sequence-parallel would free ", size(saved), " and send the same bytes"));
    }
  }
  if (q.pp() > 1 && q.schedule == "gpipe" && q.micros() > q.pp()) {
    out.push_back(str("gpipe holds the activations of all ", q.micros(), " micro-batches (",
                      size(plan.memory.activations), "); 1f1b has the same bubble and holds ",
                      q.pp()));
  }
  if (q.layout.master == 0 && q.layout.name == "bf16-nomaster") {
    out.push_back("bf16-nomaster has no fp32 copy: it trains well only with stochastic rounding");
  }
}

void about_stage(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.dp() == 1) {
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
    } else if (q.pp() == 1 && !q.state_only()) {
      const double boundary = 2 * real(q.micros()) * real(q.seq) * real(q.micro_batch) *
                              real(q.model.hidden) * element_bytes(q);
      out.push_back(str("stage 3 or a pipeline? Stage 3 sends ", size(sent),
                        " of weights and gradients; a pipeline boundary would send ",
                        size(boundary), " of activations"));
    }
  } else if (q.zero == 0) {
    const double freed = plan.needed() - at_stage(q, 1).total;
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
                      size(each.total - plan.needed() + plan.memory.grads), " and sends ",
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
  if (q.tp() > q.per_node) {
    out.push_back(str("tp ", q.tp(), " goes across hosts of ", q.per_node,
                      " GPUs: ", size(plan.traffic.tp), " a step over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth),
                      "; keep tp inside a host and put pp "
                      "or dp across"));
  }
  if (q.tp() <= q.per_node && q.nodes > 1 && q.per_node % q.tp() != 0) {
    out.push_back(str("tp ", q.tp(), " does not divide the ", q.per_node,
                      " GPUs of a host: some of its groups lie across hosts, over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth)));
  }
  if (q.pp() > 1) {
    const bool closed = q.schedule != "zb-h1" && q.schedule != "zb-v";
    const double step = plan.time.step();
    const double bubble = closed ? bubble_fraction(q.pp(), static_cast<int>(q.micros()), q.chunks)
                          : step > 0 ? plan.time.bubble / step
                                     : 0;
    const std::string numbers = str(q.micros(), " micro-batches for ", q.pp(), " stages idle ",
                                    percent(bubble), " of the time");
    const std::int64_t five = (19LL * (q.pp() - 1) + q.chunks - 1) / q.chunks;
    if (q.micros() < q.pp()) {
      out.push_back(str(numbers, ": fewer than stages, so some are always empty; at least ", q.pp(),
                        " keep all busy", closed ? str(", ", five, " bring it to 5%") : ""));
    } else if (bubble > 0.1 && closed) {
      const bool more = q.state_only() || q.model.layers >= std::int64_t{q.pp()} * (q.chunks + 1);
      out.push_back(str(numbers, "; ", five, " would bring it to 5%",
                        more ? ", or more --chunks with interleaved" : ""));
    }
    const bool even = q.model.layers % (std::int64_t{q.pp()} * q.chunks) == 0;
    if (!q.state_only() && q.split == "even" && !even) {
      out.push_back(str(q.model.layers, " layers do not divide over ", q.pp() * q.chunks,
                        " stages: the first ones have one more, and the rest wait for them"));
    }
  }
  if (q.tp() > 1 && !q.state_only() && q.model.vocab % q.tp() != 0) {
    out.push_back(str("the vocabulary of ", q.model.vocab, " does not divide by tp ", q.tp(),
                      "; --pad-vocab 128 makes it ", padded_vocab(q.model.vocab, 128LL * q.tp())));
  }
  if (q.sequence_parallel && q.tp() == 1) {
    out.push_back("--sequence-parallel cuts along tp, which is 1: nothing is cut");
  }
  const std::int64_t there = std::int64_t{q.nodes} * q.per_node;
  if (q.nodes > 1 && there > q.world()) {
    out.push_back(str(there - q.world(), " of ", there, " GPUs have nothing to do"));
  }
  if (plan.parameters > 100e9 && q.tp() == 1 && q.world() > 1) {
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

}  // namespace tessera::planner
