// Notes: unusual but valid settings, with numbers.

#include <algorithm>
#include <cmath>

#include "tessera/planner/advice.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/neighbors.h"
#include "tessera/planner/places.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/software.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

using Lines = std::vector<std::string>;

void about_memory(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  if (!plan.fits) {
    out.push_back(str("does not fit: ", of_usable(plan.needed(), q),
                      q.pipelined() ? str(" on pipeline rank ", plan.rank) : "", ", ",
                      size(-plan.margin), " too much"));
  }
  if (plan.fits && !q.hardware.caution.empty()) out.push_back(q.hardware.caution);
  if (q.recompute == Recompute::selective && q.attention == Attention::fused &&
      q.software == Software::megatron) {
    out.push_back(
        "selective recomputation saves nothing: fused attention does not store the scores");
  }
  if (q.matmul_precision != MatmulPrecision::highest && q.layout.param < 4) {
    out.push_back(str("--matmul-precision ", q.matmul_precision,
                      " has no effect: products of --layout ", q.layout.name,
                      " have 16-bit inputs"));
  }
  if (q.layout.master == 0 && q.layout.name == "bf16-nomaster") {
    out.push_back(
        "bf16-nomaster has no fp32 master copy: it trains well only with stochastic rounding");
  }
}

// Notes that stage 1 is faster by more than the prediction intervals: the update is a large part of
// the step, or gradients are wider than the gathered parameters.
void about_shared_update(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  if (q.state_only()) return;
  std::optional<Candidate> one = at_stage(q, 1);
  if (!one || !one->time_step(plan.interval.low) || !better(*one, candidate_of(plan))) return;
  const double saved = plan.time.step() - one->step;
  out.push_back(str("stage 0 fits and is the simplest; with --zero 1 a rank updates 1/", q.shards(),
                    " of the parameters, which would save ", format_time(saved), " (",
                    percent(saved / plan.time.step()), ") a step",
                    sending(plan, traffic_of(one->config).total()),
                    new_stage_in_software(one->config, q)));
}

// Returns the stage to use instead of 3: the lowest that leaves ample memory, otherwise the one
// that needs least. Returns nullopt if none fits or the step would be clearly slower.
std::optional<Candidate> lower_stage(const Plan& plan) {
  const RunConfig& q = plan.question;
  std::optional<Candidate> found;
  for (int stage = 0; stage < q.zero; ++stage) {
    std::optional<Candidate> other = at_stage(q, stage);
    if (!other || !other->fits) continue;
    if (!q.state_only()) other->time_step();
    if (!better(*other, candidate_of(plan))) continue;
    found = std::move(other);
    if (leaves_ample_memory(found->memory, q.hardware)) break;
  }
  return found;
}

void about_replicas(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  if (q.replicas() == 1) return;
  RunConfig plain = q;
  plain.axes.set_given(Axis::dp_replicate, 1);
  const double more = plan.needed() - needed_memory(plain);
  out.push_back(str("--dp-replicate ", q.replicas(), ": each of ", q.replicas(), " groups of ",
                    q.shards(), q.shards() == 1 ? " rank" : " ranks",
                    " holds all state, which takes ", size(more),
                    " a rank more than sharding over all ", q.copies()));
  if (q.shards() == 1) {
    out.push_back(str("--zero ", q.zero, " has no effect, because each replica is one rank: lower ",
                      "--dp-replicate, or use --zero 0"));
  }
  if (!q.state_only() && describe_step(q).shares_links(places(q))) {
    out.push_back(str("collectives of a replica and all-reduces over replicas use the same links ",
                      "and run one after another: replicas that are whole nodes of ", q.per_node,
                      " use separate links"));
  }
}

void about_stage(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  if (!q.averages_gradients()) {
    if (q.zero > 0) out.push_back(str("--zero ", q.zero, " has no effect with dp 1"));
    return;
  }
  if (q.zero == 0 && plan.fits && leaves_ample_memory(plan.needed(), q.hardware)) {
    about_shared_update(plan, out);
  }
  const bool advised = std::any_of(plan.advice.begin(), plan.advice.end(),
                                   [](const Advice& each) { return each.family == "zero"; });
  if (q.zero == 3 && plan.fits && !advised) {
    if (const auto lower = lower_stage(plan)) {
      out.push_back(str("stage 3 is not needed: --zero ", lower->config.zero, " fits, ",
                        of_usable(lower->memory, q),
                        sending(plan, traffic_of(lower->config).total()),
                        new_stage_in_software(lower->config, q)));
    }
  }
  const auto fits_at = [&](int stage) {
    const std::optional<Candidate> other = at_stage(q, stage);
    return other && other->fits;
  };
  if (q.zero == 3 && !q.pipelined() && !q.state_only() &&
      !fits_at(q.software == Software::megatron ? 1 : 2)) {
    const double boundary = 2 * real(q.micros()) * real(q.rank_tokens()) * real(q.micro_batch) *
                            real(q.model.hidden) * element_bytes(q);
    out.push_back(str("consider a pipeline instead of stage 3: stage 3 sends ",
                      size(plan.traffic.sent[Axis::dp_shard]),
                      " of weights and gradients; a pipeline boundary would send ", size(boundary),
                      " of activations"));
  }
  if (lack_of(q) == Lack::stage_two) {
    const double one = needed_memory(q.at_stage(1));
    out.push_back(str(lack_words(q), ": it needs ", size(one), " as --zero 1 does, not ",
                      size(plan.needed())));
  }
  if (q.zero >= 2 && q.policy() == ReducePolicy::last) {
    out.push_back(str("--grad-reduce last keeps whole gradients at stage ", q.zero, ": ",
                      size(plan.memory.grads), ", and sends ", size(plan.traffic.dp_last),
                      "; each would send ", size(plan.traffic.dp_each)));
  }
}

void about_bubble(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  const bool closed = !is_zero_bubble(q.schedule);
  const double step = plan.time.step();
  const double bubble = closed     ? bubble_fraction(q.pp(), static_cast<int>(q.micros()), q.chunks)
                        : step > 0 ? plan.time.bubble / step
                                   : 0;
  const std::string numbers =
      str(q.micros(), q.micros() == 1 ? " micro-batch for " : " micro-batches for ", q.pp(),
          " stages: idle ", percent(bubble), " of the time");
  const std::int64_t five = (19LL * (q.pp() - 1) + q.chunks - 1) / q.chunks;
  if (q.micros() < q.pp()) {
    out.push_back(str(numbers, ": fewer than stages, so some stages are always idle; at least ",
                      q.pp(), " keep all busy",
                      closed ? str(", and ", five, " reduce it to 5%") : ""));
  } else if (bubble > 0.1 && closed) {
    const bool more = q.state_only() || q.model.layers >= std::int64_t{q.pp()} * (q.chunks + 1);
    out.push_back(str(numbers, "; ", five, " would reduce it to 5%",
                      more ? ", or more --chunks with interleaved" : ""));
  }
  const bool even = q.model.layers % q.stages() == 0;
  if (!q.state_only() && q.split == "even" && !even) {
    out.push_back(
        str(q.model.layers, " layers do not divide evenly over ", q.stages(),
            " stages: the first stages have one more layer, and the others wait for them"));
  }
}

void about_context(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  if (places(q).along[Axis::cp].nodes() > 1) {
    out.push_back(str("cp ", q.cp(), " goes across hosts of ", q.per_node,
                      " GPUs: ", size(plan.traffic.sent[Axis::cp]), " a step over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth), " inside a host"));
  }
  if (q.state_only()) return;
  const std::int64_t padded = q.rank_tokens() * q.cp();
  if (padded != q.seq) {
    out.push_back(str("sequences of ", q.seq, " tokens are padded to ", padded,
                      ", so that each of ", q.cp(), " ranks has two chunks of equal length"));
  }
  const std::int64_t kv = heads_on_rank(q.model, q.axes).kv;
  if (q.cp_kind == ContextKind::ulysses && q.cp() > kv) {
    out.push_back(str("ulysses sends each of the ", kv, " KV heads of a rank ", q.cp() / kv,
                      " times, because cp ", q.cp(),
                      " is more than them; --cp-kind ring sends them "
                      "once"));
  }
}

void about_experts(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  const std::int64_t count = q.model.experts.count;
  if (places(q).along[Axis::ep].nodes() > 1) {
    const std::vector<int> counts = expert_rank_counts(q.model, q.axes);
    int inside = 1;  // the most ranks of one host
    for (const int ep : counts) {
      RunConfig other = q;
      other.axes.set(Axis::ep, ep);
      if (places(other).along[Axis::ep].nodes() == 1) inside = ep;
    }
    out.push_back(str("ep ", q.ep(), " goes across hosts of ", q.per_node,
                      " GPUs: ", size(plan.traffic.sent[Axis::ep]), " a step over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth), " inside a host",
                      inside > 1 ? str(", where --ep ", inside, " stays") : ""));
  }
  if (count % q.ep() != 0) {
    out.push_back(str(count, " experts do not divide evenly over ep ", q.ep(), ": a rank has ",
                      count / q.ep(), " or ", count / q.ep() + 1,
                      ", and the others wait for those with more"));
  }
  if (q.expert_imbalance > q.expert_received()) {
    out.push_back(q.ep() == 1
                      ? str("--expert-imbalance ", q.expert_imbalance,
                            " has no effect with ep 1: each rank computes all rows that it routes")
                      : str("--expert-imbalance ", q.expert_imbalance, " counts as ", q.ep(),
                            ", with which one rank of ep ", q.ep(), " receives every token"));
  }
  if (q.expert_load() < q.expert_received()) {
    out.push_back(str("--expert-capacity ", q.model.experts.capacity,
                      ": the busiest rank receives ", q.expert_received(),
                      " times the mean and drops ",
                      percent(1 - q.expert_load() / q.expert_received()), " of it"));
  }
}

void about_cuts(const Plan& plan, Lines& out) {
  const RunConfig& q = plan.question;
  if (q.tp() > q.per_node) {
    out.push_back(str("tp ", q.tp(), " goes across hosts of ", q.per_node,
                      " GPUs: ", size(plan.traffic.sent[Axis::tp]), " a step over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth), " inside a host"));
  }
  if (q.tp() <= q.per_node && q.nodes > 1 && q.per_node % q.tp() != 0) {
    out.push_back(str("tp ", q.tp(), " does not divide the ", q.per_node,
                      " GPUs of a host: some groups span hosts, over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth)));
  }
  if (q.cp() > 1) about_context(plan, out);
  if (q.model.experts.any()) about_experts(plan, out);
  if (q.pipelined()) about_bubble(plan, out);
  if (lack_of(q) != Lack::none && lack_of(q) != Lack::stage_two) out.push_back(lack_words(q));
  if (q.tp() > 1 && !q.state_only() && q.model.vocab % q.tp() != 0) {
    out.push_back(str("the vocabulary of ", q.model.vocab, " is not divisible by tp ", q.tp(),
                      "; --pad-vocab 128 makes it ", padded_vocab(q.model.vocab, 128LL * q.tp())));
  }
  if (q.sequence_parallel && q.tp() == 1) {
    out.push_back("--sequence-parallel has no effect with tp 1");
  }
  const std::int64_t there = std::int64_t{q.nodes} * q.per_node;
  if (q.nodes > 1 && there > q.world()) {
    out.push_back(str(there - q.world(), " of ", there, " GPUs are idle"));
  }
  if (plan.parameters > 100e9 && q.tp() == 1 && q.world() > 1) {
    out.push_back(
        str(format_count(std::llround(plan.parameters)),
            " parameters: above 100B use stage 3 with tp inside each host, and pp across hosts"));
  }
  if (!q.model.name.empty() && q.model.positions > find_model_shape(q.model.name).positions) {
    out.push_back(str(q.model.name, " has ", find_model_shape(q.model.name).positions,
                      " positions; its table is extended to ", q.model.positions));
  }
}

// Eager steps of small batches are limited by the host, whose speed the hardware entry does not
// describe.
void about_launches(const Plan& plan, Lines& out) {
  constexpr double kMuch = 0.8;
  if (plan.question.software != Software::pytorch || plan.time.step() <= 0) return;
  RunConfig device = plan.question;
  device.hardware.launch = 0;
  const double rest = step_time(device).step();
  if (rest > kMuch * plan.time.step()) return;
  out.push_back(
      str("kernel launches on the host limit the step, not the device: without them it takes ",
          format_time(rest),
          ". Hosts differ by a third in this: gpt2-xl with one sequence took 63 to 82 ms "
          "on one H200, and gpt2-124m with four took 17% more than predicted"));
}

}  // namespace

std::vector<std::string> notes_for(const Plan& plan) {
  Lines out;
  about_memory(plan, out);
  about_stage(plan, out);
  about_replicas(plan, out);
  about_cuts(plan, out);
  about_launches(plan, out);
  return out;
}

}  // namespace tessera::planner
