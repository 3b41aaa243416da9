#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/changes.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/remedy.h"
#include "tessera/planner/software.h"

namespace tessera::planner {
namespace {

using Lines = std::vector<std::string>;

// What a change must gain to be told, and what it may cost in time if it gains memory alone.
constexpr double kRealGain = 0.02, kNoLoss = 0.002;
// Share of the memory that is left where it is ample.
constexpr double kAmple = 0.25;
constexpr std::size_t kMostAdvice = 4;

// Advice with what it is compared by.
struct Promise {
  Advice advice;
  int zero = 0;
  double step = 0;
  Interval interval;
};

bool same_step(const Promise& a, const Promise& b) {
  return indistinguishable(a.step, a.interval, b.step, b.interval);
}

double time_share(const Plan& plan, const Advice& advice) {
  const double step = plan.time.step();
  return step > 0 ? advice.seconds / step : 0;
}
double memory_share(const Plan& plan, const Advice& advice) {
  return plan.needed() > 0 ? advice.bytes / plan.needed() : 0;
}

// "; sends 8.18 GB instead of 5.45 GB", where it differs.
std::string sending(const Plan& plan, double then) {
  const double now = plan.traffic.total();
  if (std::abs(now - then) <= kRealGain * now) return "";
  return str("; sends ", size(then), " instead of ", size(now));
}
std::string sending(const Plan& plan, const Advice& advice) {
  return sending(plan, plan.traffic.total() - advice.sent);
}

std::string gain_words(const Plan& plan, const Advice& advice) {
  const Question& q = plan.question;
  std::string text = advice.flags;
  const double memory = memory_share(plan, advice);
  if (!plan.fits) {
    text += str(" fits: ", of_usable(plan.needed() - advice.bytes, q));
    if (!q.state_only())
      text += str(", a step of ", format_time(plan.time.step() - advice.seconds));
    return text + sending(plan, advice) + advice.there;
  }
  const std::string less = str(size(advice.bytes), " (", percent(memory), ")");
  if (advice.faster) {
    text += str(" saves ", format_time(advice.seconds), " (", percent(time_share(plan, advice)),
                ") a step");
    if (memory >= kRealGain) text += str(" and ", less);
    if (memory <= -kRealGain) text += str(", and takes ", size(-advice.bytes), " more");
  } else {
    text += str(" frees ", less, q.state_only() ? "" : " and takes no longer");
  }
  return text + sending(plan, advice) + advice.there;
}

// Returns whether it is worth more than the other.
bool better(const Plan& plan, const Advice& a, const Advice& b) {
  if (a.faster != b.faster) return a.faster;
  // By time, but for what nobody could tell apart.
  if (std::abs(a.seconds - b.seconds) > kNoLoss * plan.time.step()) return a.seconds > b.seconds;
  return plan.fits && a.bytes > b.bytes;
}

// Returns whether it is worth more than the best of its family so far. Of stages that take as long,
// as far as predictions can tell, the lowest is.
bool replaces(const Plan& plan, const Promise& next, const Promise& best) {
  if (next.advice.family == "zero" && next.advice.faster == best.advice.faster &&
      same_step(next, best)) {
    return next.zero < best.zero;
  }
  return better(plan, next.advice, best.advice);
}

// Returns whether less memory is a gain of its own.
bool is_lighter(const Plan& plan, const Advice& advice) {
  return memory_share(plan, advice) >= kRealGain &&
         !leaves_ample_memory(plan.needed(), plan.question.hardware);
}

bool worth_telling(const Plan& plan, const Advice& advice) {
  if (!advice.fits) return false;
  if (!plan.fits || advice.faster) return true;
  return is_lighter(plan, advice) && time_share(plan, advice) >= -kNoLoss;
}

// "; shards inside each of the 8 nodes and replicates across: a node sends …".
std::string replica_words(const Question& q, const Plan& plan) {
  const auto out_of_node = [](const Question& question) {
    return dp_bytes_out_of_node(places(question), traffic_of(question).sent);
  };
  const double then = out_of_node(q), now = out_of_node(plan.question);
  const std::string nodes =
      then == now ? "" : str("; a node sends ", size(then), " to others instead of ", size(now));
  if (q.replicas() == 1) return str("; shards over all ", q.dp(), " ranks", nodes);
  const std::string where = places(q).along[Axis::dp_shard].nodes() == 1
                                ? str("inside each of ", q.nodes, " nodes")
                                : str("inside each group of ", q.shards(), " ranks");
  return str("; shards ", where, " and replicates across", nodes);
}

// End of the text of a change.
std::string consequences(const Question& q, const Plan& plan, const std::string& family) {
  std::string text = new_stage_in_software(q, plan.question);
  if (family == "mesh" && places(q).along[Axis::tp].nodes() > 1) {
    text += str("; tp ", q.tp(), " goes across hosts of ", q.per_node, " GPUs");
  }
  if (family == "dp-replicate") text += replica_words(q, plan) + replicas_in_software(q);
  if (family == "grad-compression") {
    text += str("; fp32 gradients are rounded to ", name(q.compression()), " on their way");
  }
  return text;
}

// [Note: advice, quickly] What a change brings; nothing where that is not worth telling, or not
// more than the best of its kind. Most changes are seen to be neither by their memory and by a time
// that they cannot be below, so that few steps are timed.
std::optional<Promise> promise(const Plan& plan, const PartTimes* parts, Change change,
                               const Promise* best) {
  constexpr double kRounding = 1e-9;
  if (newly_lacks(change.question, plan.question)) return std::nullopt;
  if (plan.fits && change.question.zero > plan.question.zero &&
      leaves_ample_memory(plan.needed(), plan.question.hardware)) {
    return std::nullopt;  // the simplest stage that fits; about_stage() tells of a quicker one
  }
  try {
    const Question q = settle(std::move(change.question));
    const double now = plan.time.step(), needed = needed_memory(q);
    Promise made{{"", std::move(change.flags), std::move(change.family)}, q.zero, 0, {}};
    Advice& advice = made.advice;
    advice.bytes = plan.needed() - needed;
    advice.fits = needed <= usable_memory(q.hardware);
    if (!advice.fits) return std::nullopt;
    if (!q.state_only()) {
      const Step step =
          change.same_parts && parts != nullptr ? describe_step(q, *parts) : describe_step(q);
      const double least = least_step_time(step) * (1 - kRounding);
      const double slowest = is_lighter(plan, advice)
                                 ? now * (1 + kNoLoss)
                                 : std::min(now * (1 - kRealGain), plan.interval.low);
      if (plan.fits && least > slowest) return std::nullopt;
      if (best != nullptr && least > best->step + kNoLoss * now) return std::nullopt;
      made.step = step_time(step).step();
      made.interval = step_interval(q, made.step);
      advice.seconds = now - made.step;
      advice.faster = time_share(plan, advice) >= kRealGain &&
                      !indistinguishable(now, plan.interval, made.step, made.interval);
    }
    if (!worth_telling(plan, advice)) return std::nullopt;
    if (best != nullptr && !replaces(plan, made, *best)) return std::nullopt;
    advice.sent = plan.traffic.total() - traffic_of(q).total();
    advice.there = consequences(q, plan, advice.family);
    return made;
  } catch (const UsageError&) {  // it cannot be
    return std::nullopt;
  }
}

void about_memory(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (!plan.fits) {
    out.push_back(str("does not fit: ", of_usable(plan.needed(), q),
                      q.pp() > 1 ? str(" on pipeline rank ", plan.rank) : "", ", ",
                      size(-plan.margin), " too much"));
  }
  if (plan.fits && !q.hardware.caution.empty()) out.push_back(q.hardware.caution);
  if (q.recompute == Recompute::selective && q.attention == Attention::fused &&
      q.software == Software::megatron) {
    out.push_back(
        "selective recomputation saves nothing here: fused attention already keeps no scores");
  }
  if (q.layout.master == 0 && q.layout.name == "bf16-nomaster") {
    out.push_back("bf16-nomaster has no fp32 copy: it trains well only with stochastic rounding");
  }
}

// Stage 1 is faster by more than the intervals: the update is a large part of the step, or
// gradients are wider than the parameters that it gathers.
void about_shared_update(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.state_only()) return;
  const Question one = at_stage(q, 1).question;
  const Step step = describe_step(one);
  if (least_step_time(step) > plan.interval.low) return;
  const double now = plan.time.step(), then = step_time(step).step();
  if (then > now || indistinguishable(now, plan.interval, then, step_interval(one, then))) return;
  out.push_back(str("stage 0 fits and is the simplest; with --zero 1 a rank updates 1/", q.dp(),
                    " of the parameters, which would save ", format_time(now - then), " (",
                    percent((now - then) / now), ") a step", sending(plan, traffic_of(one).total()),
                    new_stage_in_software(one, q)));
}

// The lower stage to take instead of 3: the lowest that leaves ample memory, or else the one that
// needs least; nothing where none fits, or where the step would be slower beyond doubt.
std::optional<Instead> lower_stage(const Plan& plan) {
  const Question& q = plan.question;
  std::optional<Instead> found;
  for (int stage = 0; stage < q.zero; ++stage) {
    Instead other = at_stage(q, stage);
    if (!other.runs) continue;
    if (!q.state_only()) {
      const double now = plan.time.step(), then = step_time(other.question).step();
      const Interval interval = step_interval(other.question, then);
      if (then > now && !indistinguishable(now, plan.interval, then, interval)) continue;
    }
    found = std::move(other);
    if (leaves_ample_memory(found->total, q.hardware)) break;
  }
  return found;
}

void about_replicas(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.replicas() == 1) return;
  Question plain = q;
  plain.axes.set_given(Axis::dp_replicate, 1);
  const double more = plan.needed() - needed_memory(plain);
  out.push_back(str("--dp-replicate ", q.replicas(), ": each of ", q.replicas(), " groups of ",
                    q.shards(), q.shards() == 1 ? " rank" : " ranks",
                    " holds all state, which takes ", size(more),
                    " a rank more than sharding over all ", q.dp()));
  if (q.shards() == 1) {
    out.push_back(str("--zero ", q.zero, " shards over one rank, that is not at all: lower ",
                      "--dp-replicate, or leave sharding out with --zero 0"));
  }
  if (!q.state_only() && describe_step(q).shares_links(places(q))) {
    out.push_back(str("collectives of a replica and all-reduces over replicas use the same links ",
                      "and follow one another: a replica that is a whole node of ", q.per_node,
                      " keeps them apart"));
  }
}

void about_stage(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.dp() == 1) {
    if (q.zero > 0) out.push_back(str("--zero ", q.zero, " shards over dp 1, that is not at all"));
    return;
  }
  if (q.zero == 0 && plan.fits && leaves_ample_memory(plan.needed(), q.hardware)) {
    about_shared_update(plan, out);
  }
  const bool advised = std::any_of(plan.advice.begin(), plan.advice.end(),
                                   [](const Advice& each) { return each.family == "zero"; });
  if (q.zero == 3 && plan.fits && !advised) {
    if (const auto lower = lower_stage(plan)) {
      out.push_back(str("stage 3 is not needed: --zero ", lower->question.zero, " fits, ",
                        of_usable(lower->total, q),
                        sending(plan, traffic_of(lower->question).total()),
                        new_stage_in_software(lower->question, q)));
    }
  }
  const int next_best = q.software == Software::megatron ? 1 : 2;
  if (q.zero == 3 && q.pp() == 1 && !q.state_only() && !at_stage(q, next_best).fits) {
    const double boundary = 2 * real(q.micros()) * real(q.seq) * real(q.micro_batch) *
                            real(q.model.hidden) * element_bytes(q);
    out.push_back(str("stage 3 or a pipeline? Stage 3 sends ",
                      size(plan.traffic.sent[Axis::dp_shard]),
                      " of weights and gradients; a pipeline boundary would send ", size(boundary),
                      " of activations"));
  }
  if (lack_of(q) == Lack::stage_two) {
    const Instead one = at_stage(q, 1);
    out.push_back(str(lack_words(q), ": it needs ", size(one.total), " as --zero 1 has it, not ",
                      size(plan.needed())));
  }
  if (q.zero >= 2 && q.policy() == ReducePolicy::last) {
    out.push_back(str("--grad-reduce last keeps whole gradients at stage ", q.zero, ": ",
                      size(plan.memory.grads), ", and sends ", size(plan.traffic.dp_last),
                      "; each would send ", size(plan.traffic.dp_each)));
  }
}

void about_bubble(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  const bool closed = q.schedule != "zb-h1" && q.schedule != "zb-v";
  const double step = plan.time.step();
  const double bubble = closed     ? bubble_fraction(q.pp(), static_cast<int>(q.micros()), q.chunks)
                        : step > 0 ? plan.time.bubble / step
                                   : 0;
  const std::string numbers =
      str(q.micros(), q.micros() == 1 ? " micro-batch for " : " micro-batches for ", q.pp(),
          " stages: idle ", percent(bubble), " of the time");
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

void about_cuts(const Plan& plan, Lines& out) {
  const Question& q = plan.question;
  if (q.tp() > q.per_node) {
    out.push_back(str("tp ", q.tp(), " goes across hosts of ", q.per_node,
                      " GPUs: ", size(plan.traffic.sent[Axis::tp]), " a step over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth), " inside a host"));
  }
  if (q.tp() <= q.per_node && q.nodes > 1 && q.per_node % q.tp() != 0) {
    out.push_back(str("tp ", q.tp(), " does not divide the ", q.per_node,
                      " GPUs of a host: some of its groups lie across hosts, over links of ",
                      format_rate(q.hardware.between.bandwidth), " instead of ",
                      format_rate(q.hardware.inside.bandwidth)));
  }
  if (q.pp() > 1) about_bubble(plan, out);
  if (lack_of(q) != Lack::none && lack_of(q) != Lack::stage_two) out.push_back(lack_words(q));
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

// Eager steps of small batches are the host's: no property of the device says how fast that is.
void about_launches(const Plan& plan, Lines& out) {
  constexpr double kMuch = 0.8;
  if (plan.question.software != Software::pytorch || plan.time.step() <= 0) return;
  Question device = plan.question;
  device.hardware.launch = 0;
  const double rest = step_time(device).step();
  if (rest > kMuch * plan.time.step()) return;
  out.push_back(str("the host's launches set the pace, not the device: with none it would take ",
                    format_time(rest),
                    ". Hosts differ by a third there: gpt2-xl with one sequence took 63 to 82 ms "
                    "on one H200, and gpt2-124m with four 17% more than is predicted"));
}

}  // namespace

bool leaves_ample_memory(double needed, const Hardware& hardware) {
  const double usable = usable_memory(hardware);
  return usable - needed >= kAmple * usable;
}

std::vector<std::string> notes_for(const Plan& plan) {
  Lines out;
  about_memory(plan, out);
  about_stage(plan, out);
  about_replicas(plan, out);
  about_cuts(plan, out);
  about_launches(plan, out);
  return out;
}

std::vector<Advice> advice_for(const Plan& plan) {
  std::map<std::string, Promise> best;  // by family
  std::optional<PartTimes> parts;       // of the plan and of all that compute the same
  if (!plan.question.state_only()) parts = part_times(plan.question);
  for (Change& change : possible_changes(plan.question)) {
    // Sharper means where a gentle one does are no advice.
    if (change.family == "all" && (plan.fits || !best.empty())) continue;
    const auto at = best.find(change.family);
    const Promise* const so_far = at == best.end() ? nullptr : &at->second;
    if (auto made = promise(plan, parts ? &*parts : nullptr, std::move(change), so_far)) {
      best[made->advice.family] = std::move(*made);
    }
  }
  std::vector<Advice> all;
  for (auto& [family, made] : best) all.push_back(std::move(made.advice));
  std::stable_sort(all.begin(), all.end(),
                   [&](const Advice& a, const Advice& b) { return better(plan, a, b); });
  if (all.size() > kMostAdvice) all.resize(kMostAdvice);
  for (Advice& advice : all) advice.text = gain_words(plan, advice);
  return all;
}

}  // namespace tessera::planner
