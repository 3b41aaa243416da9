#include "tessera/planner/advice.h"

#include <map>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/planner/neighbors.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/software.h"

namespace tessera::planner {
namespace {

// Largest slowdown accepted for a gain in memory only.
constexpr double kNoLoss = 0.002;
// Share of free memory from which on memory is ample.
constexpr double kAmple = 0.25;
constexpr std::size_t kMaxAdvice = 4;
// Above this bubble the remedy is to reduce the bubble, not to add GPUs.
constexpr double kMuchBubble = 0.3;

// Advice, with the candidate by which it is compared.
struct Offer {
  Advice advice;
  Candidate candidate;
};

double time_share(const Plan& plan, const Advice& advice) {
  const double step = plan.time.step();
  return step > 0 ? advice.seconds / step : 0;
}
double memory_share(const Plan& plan, const Advice& advice) {
  return plan.needed() > 0 ? advice.bytes / plan.needed() : 0;
}

std::string sending(const Plan& plan, const Advice& advice) {
  return planner::sending(plan, plan.traffic.total() - advice.sent);
}

std::string gain_text(const Plan& plan, const Advice& advice) {
  const RunConfig& q = plan.question;
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
    if (memory <= -kRealGain) text += str(", but needs ", size(-advice.bytes), " more memory");
  } else {
    text += str(" frees ", less, q.state_only() ? "" : " at no cost in time");
  }
  return text + sending(plan, advice) + advice.there;
}

// Returns whether `a` gains more.
bool gains_more(const Plan& plan, const Advice& a, const Advice& b) {
  if (a.faster != b.faster) return a.faster;
  // By time, ignoring negligible differences.
  if (std::abs(a.seconds - b.seconds) > kNoLoss * plan.time.step()) return a.seconds > b.seconds;
  return plan.fits && a.bytes > b.bytes;
}

// Returns whether `next` is better than the best of its family so far: by better() if their ZeRO
// stages differ.
bool replaces(const Plan& plan, const Advice& next, const Candidate& a, const Offer& best) {
  const Candidate& b = best.candidate;
  const bool by_stage = a.config.zero != b.config.zero && next.faster == best.advice.faster &&
                        indistinguishable(a.step, a.interval, b.step, b.interval);
  return by_stage ? better(a, b) : gains_more(plan, next, best.advice);
}

// Returns whether the saved memory is a benefit by itself.
bool is_lighter(const Plan& plan, const Advice& advice) {
  return memory_share(plan, advice) >= kRealGain &&
         !leaves_ample_memory(plan.needed(), plan.question.hardware);
}

bool worth_telling(const Plan& plan, const Advice& advice) {
  if (!advice.fits) return false;
  if (!plan.fits || advice.faster) return true;
  return is_lighter(plan, advice) && time_share(plan, advice) >= -kNoLoss;
}

// Returns "; shards inside each of 8 nodes and replicates across; a node sends …".
std::string replica_text(const RunConfig& q, const Plan& plan) {
  const auto out_of_node = [](const RunConfig& question) {
    return dp_bytes_out_of_node(places(question), traffic_of(question).sent);
  };
  const double then = out_of_node(q), now = out_of_node(plan.question);
  const std::string nodes =
      then == now ? "" : str("; a node sends ", size(then), " to others instead of ", size(now));
  if (q.replicas() == 1) return str("; shards over all ", q.copies(), " ranks", nodes);
  const std::string where = places(q).shard.nodes() == 1
                                ? str("inside each of ", q.nodes, " nodes")
                                : str("inside each group of ", q.shards(), " ranks");
  return str("; shards ", where, " and replicates across", nodes);
}

// Returns "; tp 16 goes across hosts of 8 GPUs" for axes whose ranks communicate in every layer.
std::string beyond_hosts(const RunConfig& q) {
  std::string text;
  for (const Axis axis : kInLayerAxes) {
    if (places(q).along[axis].nodes() <= 1) continue;
    text += str("; ", axis_name(axis), " ", q.axes.size(axis), " goes across hosts of ", q.per_node,
                " GPUs");
  }
  return text;
}

// Returns the end of a change's text.
std::string consequences(const RunConfig& q, const Plan& plan, const std::string& family) {
  std::string text = new_stage_in_software(q, plan.question);
  if (family == "mesh" || family == "cp" || family == "ep") text += beyond_hosts(q);
  if (family == "dp-replicate") text += replica_text(q, plan) + replicas_in_software(q);
  if (family == "grad-compression") {
    text += str("; fp32 gradients are sent as ", name(q.grad_compression));
  }
  return text;
}

// Evaluates an edit. Returns nullopt if it is not worth reporting or not better than the best of
// its family: [Note: neighbors].
std::optional<Offer> evaluate(const Plan& plan, const PlanParts& parts, Edit& edit,
                              const Offer* best) {
  Candidate& candidate = edit.candidate;
  if (plan.fits && candidate.config.zero > plan.question.zero &&
      leaves_ample_memory(plan.needed(), plan.question.hardware)) {
    return std::nullopt;  // prefer the simplest stage that fits; about_stage() reports a faster one
  }
  const PlanParts* const same = edit.same_parts && !plan.question.state_only() ? &parts : nullptr;
  const bool possible = candidate.resolve_beside(plan.question, same ? &same->in_memory : nullptr);
  if (!possible || !candidate.fits) return std::nullopt;
  Advice advice{"", edit.flags, edit.family};
  advice.bytes = plan.needed() - candidate.memory;
  advice.fits = true;
  if (!plan.question.state_only()) {
    const double now = plan.time.step();
    double longest = std::numeric_limits<double>::infinity();
    if (plan.fits) {
      longest = is_lighter(plan, advice) ? now * (1 + kNoLoss)
                                         : std::min(now * (1 - kRealGain), plan.interval.low);
    }
    if (best != nullptr) longest = std::min(longest, best->candidate.step + kNoLoss * now);
    if (!candidate.time_step(longest, same ? &same->times : nullptr)) return std::nullopt;
    advice.seconds = now - candidate.step;
    advice.faster = time_share(plan, advice) >= kRealGain &&
                    !indistinguishable(now, plan.interval, candidate.step, candidate.interval);
  }
  if (!worth_telling(plan, advice)) return std::nullopt;
  if (best != nullptr && !replaces(plan, advice, candidate, *best)) return std::nullopt;
  advice.sent = plan.traffic.total() - traffic_of(candidate.config).total();
  advice.there = consequences(candidate.config, plan, advice.family);
  return Offer{std::move(advice), candidate};
}

// Returns the smallest --cp with which the run fits, on as many times the GPUs, with its figures;
// "" if there is none.
std::string larger_context(const RunConfig& q) {
  if (q.state_only() || q.hardware.cpu) return "";
  for (int cp = 2 * q.cp(); q.seq / cp >= kLeastContextTokens; cp *= 2) {
    RunConfig other = q;
    other.axes.set(Axis::cp, cp);
    other.gpus = other.nodes = 0;
    if (!other.has("cp-kind")) other.cp_kind = ContextKind::automatic;
    const std::optional<Candidate> found = Candidate::beside(q, std::move(other));
    if (!found || !found->fits) continue;
    return str("--cp ", cp, " on ", found->config.world(), " GPUs, with ",
               found->config.rank_tokens(),
               " tokens of a sequence on each rank, fits: ", of_usable(found->memory, q),
               beyond_hosts(found->config), "; or ");
  }
  return "";
}

// Remedy if activations and temporaries alone do not fit, so that sharding state does not help.
std::string less_in_flight(const RunConfig& q, double rest) {
  std::string text = str("activations and temporaries alone need ", of_usable(rest, q), ": ");
  text += larger_context(q);
  if (q.recompute != Recompute::full) text += "--recompute full, ";
  if (q.micro_batch > 1) text += "--micro-batch 1, ";
  if (q.tp() < q.per_node) {
    text += str("--tp up to ", q.per_node, " with --sequence-parallel, ");
  } else if (q.sequence_ranks() < q.tp()) {
    text += "--sequence-parallel, ";
  }
  return text + "a shorter --seq, and then shard the state: --pp, or --zero 3 with more --dp";
}

// Remedy if the state does not fit, or if activations are unknown.
std::string over_more_gpus(const RunConfig& q) {
  const Memory memory = memory_of(q);
  const double rest = needed_memory(q) - memory.params - memory.grads - memory.optimizer;
  if (rest > usable_memory(q.hardware)) return less_in_flight(q, rest);
  const bool more_tp = q.tp() < q.per_node;
  std::string text = "split the model over more GPUs: ";
  const std::int64_t experts = q.state_only() ? 0 : q.model.experts.count;
  if (q.ep() < experts) text += str("--ep up to ", experts, " with more --dp, ");
  if (more_tp) text += str("--tp up to ", q.per_node, " inside a host, then ");
  text += str("--pp across hosts");
  if (!q.averages_gradients()) return text + ", or shard it with --zero 3 and --dp";
  return text + (q.zero == 3 ? ", or raise --dp" : "");
}

// Describes the gain of faster links; "" if latency or launches limit the step.
std::string links_remedy(const Plan& plan) {
  Candidate faster = candidate_of(plan);
  faster.config.hardware.inside.bandwidth *= 2;
  faster.config.hardware.between.bandwidth *= 2;
  const double now = plan.time.step(), little = kRealGain * now;
  if (!faster.time_step(now - little) || now - faster.step < little) return "";
  return str("links twice as fast would save ", format_time(now - faster.step), " (",
             percent((now - faster.step) / now), ")");
}

// Returns the throughput relative to the plan after a change that may also alter the batch or the
// devices; 0 if it is not possible or gains too little.
double gained(const Plan& plan, RunConfig changed) {
  std::optional<Candidate> other = Candidate::beside(plan.question, std::move(changed));
  if (!other || !other->fits || plan.tokens_per_s <= 0) return 0;
  const double tokens = real(other->config.global_batch) * real(other->config.seq);
  const double same_rate = tokens / plan.tokens_per_s;  // seconds of its tokens at the plan's rate
  if (!other->time_step(same_rate / (1 + kRealGain))) return 0;
  if (other->step > same_rate / (1 + kRealGain)) return 0;
  const double by = same_rate / plan.time.step();
  const Interval now{by * plan.interval.low, by * plan.interval.high, ""};
  return indistinguishable(same_rate, now, other->step, other->interval) ? 0
                                                                         : same_rate / other->step;
}

// More accumulation, with a larger global batch.
std::string accumulation_remedy(const Plan& plan) {
  RunConfig q = plan.question;
  q.grad_accum *= 4, q.global_batch *= 4;
  const double more = gained(plan, q);
  if (more == 0) return "";
  return str("--grad-accum ", q.grad_accum, ", a global batch of ", q.global_batch, ", trains ",
             fixed(more, 2), " times as many tokens a second");
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
  return ways.empty() ? "no flag gains more than the error of predictions, and faster links gain "
                        "less than 2%: use fewer GPUs for this batch"
                      : join(ways, "; ");
}

std::string more_devices(const Plan& plan) {
  RunConfig q = plan.question;
  q.axes.set_dp(q.dp() * 2);
  q.gpus = q.nodes = 0;
  q.global_batch *= 2;
  const double twice = gained(plan, q);
  const std::string text =
      str("more ", q.software == Software::tessera ? "ranks" : "GPUs", " with --dp");
  if (twice == 0) return text;
  return str(text, ": --dp ", q.dp(), " trains ", fixed(twice, 2),
             " times as many tokens a second");
}

// Returns the offload with which it fits, and its cost, which the predicted time does not include;
// "" if there is none.
std::string offload_that_fits(const RunConfig& q) {
  if (q.software != Software::tessera || q.gpu.value_or(true) || q.offloads_optimizer()) return "";
  RunConfig changed = q;
  changed.offload = "optimizer";
  const auto other = Candidate::beside(q, std::move(changed));
  if (!other || !other->fits) return "";
  return str("--offload optimizer fits: ", of_usable(other->memory, q),
             "; every step then reads and writes files of ", size(memory_of(other->config).on_disk),
             " on each rank");
}

// Describes the smallest change that makes it fit, or the settings to reduce if none does.
std::string what_would_fit(const RunConfig& q) {
  if (std::string change = least_change_that_fits(q); !change.empty()) return change;
  const double state = memory_of(q).total(), usable = usable_memory(q.hardware);
  if (!q.state_only() || state <= usable) return over_more_gpus(q);
  return str("split the model over at least ", std::ceil(state / usable * q.tp() * q.pp()),
             " GPUs with --tp inside a host and --pp across hosts",
             q.zero < 3 ? ", or shard it with --zero 3 and more --dp" : ", or raise --dp");
}

}  // namespace

std::string sending(const Plan& plan, double then) {
  const double now = plan.traffic.total();
  if (std::abs(now - then) <= kRealGain * now) return "";
  return str("; sends ", size(then), " instead of ", size(now));
}

bool leaves_ample_memory(double needed, const Hardware& hardware) {
  const double usable = usable_memory(hardware);
  return usable - needed >= kAmple * usable;
}

std::vector<Advice> advice_for(const Plan& plan, const PlanParts& parts) {
  std::map<std::string, Offer> best;  // by family
  for_each_neighbor(plan.question, [&](Edit& edit) {
    // Combined edits are advised only if no single edit makes the plan fit.
    if (edit.family == "all" && (plan.fits || !best.empty())) return;
    const auto at = best.find(edit.family);
    const Offer* const so_far = at == best.end() ? nullptr : &at->second;
    if (auto offer = evaluate(plan, parts, edit, so_far)) {
      best[edit.family] = std::move(*offer);
    }
  });
  std::vector<Advice> all;
  for (auto& [family, offer] : best) all.push_back(std::move(offer.advice));
  std::stable_sort(all.begin(), all.end(),
                   [&](const Advice& a, const Advice& b) { return gains_more(plan, a, b); });
  if (all.size() > kMaxAdvice) all.resize(kMaxAdvice);
  for (Advice& advice : all) advice.text = gain_text(plan, advice);
  return all;
}

std::string least_change_that_fits(const RunConfig& q) {
  std::string first;
  for_each_neighbor(q, [&](Edit& edit) {
    if (!first.empty()) return;
    const std::string& family = edit.family;
    const bool considered = family == "dp-replicate" || family == "zero" || family == "ep" ||
                            family == "attention" || family == "recompute" ||
                            family == "micro-batch" || family == "cp" || family == "all";
    // In the other direction it needs more memory.
    RunConfig& changed = edit.candidate.config;
    const bool saves = changed.replicas() <= q.replicas() && changed.zero >= q.zero &&
                       changed.recompute >= q.recompute && changed.micro_batch <= q.micro_batch &&
                       changed.ep() >= q.ep();
    if (!considered || !saves) return;
    // The user requested another policy than the default of the stage.
    if (changed.zero != q.zero && q.policy() == default_reduce_policy(q.zero)) {
      changed.grad_reduce.reset();
    }
    if (!edit.candidate.resolve_beside(q) || !edit.candidate.fits) return;
    const std::string fits = str(" fits: ", of_usable(edit.candidate.memory, q));
    if (family == "micro-batch") {
      first = str("--micro-batch ", changed.micro_batch, " with --grad-accum ", changed.grad_accum,
                  " fits and keeps the global batch", std::string_view(fits).substr(5));
      return;
    }
    const std::string shards = family == "dp-replicate" ? str(", sharded over ", changed.shards(),
                                                              " ranks instead of ", q.shards())
                                                        : "";
    first = str(edit.flags, fits, shards, new_stage_in_software(changed, q),
                family == "cp" || family == "ep" ? beyond_hosts(changed) : "");
  });
  return first.empty() ? offload_that_fits(q) : first;
}

std::string remedy_for(const Plan& plan) {
  const RunConfig& q = plan.question;
  const StepTime& t = plan.time;
  switch (plan.bound) {
    case Bound::memory: return what_would_fit(q);
    case Bound::network:
      return str(percent(t.exposed() / t.step()),
                 " of the step waits for the network: ", network_remedy(plan));
    case Bound::compute: break;
  }
  if (t.step() > 0 && t.bubble > kMuchBubble * t.step()) {
    return str(percent(t.bubble / t.step()), " of the step is bubble: more micro-batches (now ",
               q.micros(), " for ", q.pp(), " stages) with a larger --global-batch",
               q.micro_batch > 1 ? " or a smaller --micro-batch" : "", ", or a smaller --pp");
  }
  if (q.state_only()) return "give --model, or --layers, --hidden and --heads";
  if (plan.advice.empty() || !plan.advice.front().faster) return more_devices(plan);
  return str(plan.advice.front().text, ", then more ",
             q.software == Software::tessera ? "ranks" : "GPUs", " with --dp");
}

}  // namespace tessera::planner
