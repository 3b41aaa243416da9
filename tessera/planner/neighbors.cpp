#include "tessera/planner/neighbors.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/places.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/software.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

// Returns "25MB" if that is exact, otherwise the number of bytes, as --bucket-size parses it.
std::string exact_size(double bytes) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(bytes, 9e18)));
  std::string text = format_bytes(whole);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());  // a single shell word
  return parse_bytes(text) == whole ? text : str(whole);
}

class Neighborhood {
 public:
  using Visit = std::function<void(Edit&)>;
  Neighborhood(const RunConfig& q, const Visit& visit)
      : q_(q), visit_(visit), fuses_(can_fuse(q)), edit_{"", "", {q, 0, false, 0, {}}} {}

  void replicas();
  void stages();
  void experts();
  void recomputation();
  void batches();
  void contexts();
  void reductions();
  void buckets();
  void overlaps();
  void schedules();
  void meshes();
  void all_at_once();

 private:
  // `change` edits a RunConfig.
  template <typename Change>
  void add(const char* family, std::string flags, const Change& change, bool same_parts = false) {
    edit_.family = family;
    edit_.flags = std::move(flags);
    edit_.same_parts = same_parts;
    edit_.candidate.config = q_;
    change(edit_.candidate.config);
    visit_(edit_);
  }
  template <typename Change>
  void add_same_parts(const char* family, std::string flags, const Change& change) {
    add(family, std::move(flags), change, /*same_parts=*/true);
  }
  void mesh(const char* family, Axes axes);
  void resize(Axis axis, int size);
  static bool can_fuse(const RunConfig& q) {
    return q.attention == Attention::unfused && q.hardware.fused_attention;
  }

  const RunConfig& q_;
  const Visit& visit_;
  bool fuses_;  // fused attention is possible, and not in use
  Edit edit_;
};

// [Note: hybrid sharding] Fewer replicas if there are several; and replicas that fill nodes.
void Neighborhood::replicas() {
  std::vector<int> counts;
  for (int fewer = q_.replicas() - 1; fewer >= 1; --fewer) {
    if (q_.replicas() % fewer == 0) counts.push_back(fewer);
  }
  if (q_.zero > 0) {
    for (const int count : replica_counts(q_)) {
      if (q_.replicas() % count != 0) counts.push_back(count);
    }
  }
  for (const int count : counts) {
    add_same_parts("dp-replicate", str("--dp-replicate ", count),
                   [&](RunConfig& o) { o.axes.set_given(Axis::dp_replicate, count); });
  }
}

void Neighborhood::stages() {
  if (!q_.averages_gradients()) return;
  for (int stage = 0; stage <= 3; ++stage) {
    if (stage == q_.zero) continue;
    const bool drops = stage == 0 && q_.replicas() > 1;
    add_same_parts("zero", str("--zero ", stage, drops ? " --dp-replicate 1" : ""),
                   [&](RunConfig& o) { o.set_stage(stage); });
  }
}

// Cuts the experts over more or fewer of the ranks that shard state.
void Neighborhood::experts() {
  if (q_.state_only() || !q_.model.experts.any()) return;
  for (const int ep : expert_rank_counts(q_.model, q_.axes)) {
    if (ep == q_.ep()) continue;
    add("ep", str("--ep ", ep), [&](RunConfig& o) { o.axes.set(Axis::ep, ep); });
  }
}

void Neighborhood::reductions() {
  if (!q_.averages_gradients()) return;
  if (q_.zero >= 2 && q_.micros() > 1) {
    const bool each = q_.policy() == ReducePolicy::each;
    add_same_parts(
        "grad-reduce", each ? "--grad-reduce last" : "--grad-reduce each",
        [&](RunConfig& o) { o.grad_reduce = each ? ReducePolicy::last : ReducePolicy::each; });
  }
  // Only Tessera can send gradients in another type than it stores them in.
  if (q_.software == Software::tessera && q_.layout.grad == 4 &&
      q_.grad_compression == GradCompression::none) {
    add_same_parts("grad-compression", "--grad-compression bf16",
                   [](RunConfig& o) { o.grad_compression = GradCompression::bf16; });
  }
  if (q_.zero == 3) {
    add_same_parts("keep-params", q_.keep_params ? "--no-keep-params" : "--keep-params",
                   [](RunConfig& o) { o.keep_params = !o.keep_params; });
  }
}

void Neighborhood::recomputation() {
  if (fuses_) {
    add("attention", "--attention fused", [](RunConfig& o) { o.attention = Attention::fused; });
  }
  for (const Recompute what : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (what == q_.recompute) continue;
    add("recompute", str("--recompute ", name(what)), [&](RunConfig& o) { o.recompute = what; });
  }
}

// Splits the same sequences into fewer or more micro-batches.
void Neighborhood::batches() {
  const std::int64_t each = q_.micro_batch * q_.grad_accum;
  const auto take = [&](std::int64_t micro) {
    if (micro < 1 || each % micro != 0) return;
    add("micro-batch", str("--micro-batch ", micro, " --grad-accum ", each / micro),
        [&](RunConfig& o) { o.micro_batch = micro, o.grad_accum = each / micro; });
  };
  for (std::int64_t micro = q_.micro_batch * 2; micro <= std::min(each, q_.micro_batch * 16);
       micro *= 2) {
    take(micro);
  }
  std::int64_t micro = q_.micro_batch;
  for (int i = 0; i < 5 && micro % 2 == 0; ++i) take(micro /= 2);
  if (micro > 1) take(1);
}

// Shares each sequence over more ranks, which train on fewer sequences at once.
void Neighborhood::contexts() {
  if (q_.state_only() || q_.hardware.cpu) return;
  for (int times = 2; times <= q_.dp(); times *= 2) {
    Axes axes = q_.axes;
    axes.set_given(Axis::cp, q_.cp() * times);
    axes.set_dp(q_.dp() / times);
    if (q_.dp() % times != 0) return;
    mesh("cp", axes);
  }
}

void Neighborhood::buckets() {
  if (!q_.averages_gradients()) return;
  double params = 0;
  for (const auto& chunks : chunk_layers(q_))
    params = std::max(params, trained_on_rank(q_, chunks));
  RunConfig open = q_;
  open.bucket_bytes = 0;
  const double usual = bucket_bytes(open, params), now = bucket_bytes(q_, params);
  for (const double bytes : {usual, std::round(now / 4), now * 4}) {
    if (bytes == now || bytes < 1024 || bytes > params * q_.layout.grad) continue;
    add_same_parts("bucket-size", str("--bucket-size ", exact_size(bytes)),
                   [&](RunConfig& o) { o.bucket_bytes = bytes; });
  }
}

void Neighborhood::overlaps() {
  if (!q_.overlap_grad_reduce) {
    add_same_parts("overlap-grad-reduce", "--overlap-grad-reduce",
                   [](RunConfig& o) { o.overlap_grad_reduce = true; });
  }
  if (!q_.overlap_param_gather) {
    add_same_parts("overlap-param-gather", "--overlap-param-gather",
                   [](RunConfig& o) { o.overlap_param_gather = true; });
  }
  if (q_.tp() > 1) {
    add("sequence-parallel",
        q_.sequence_parallel ? "--no-sequence-parallel" : "--sequence-parallel",
        [](RunConfig& o) { o.sequence_parallel = !o.sequence_parallel; });
  }
  if (q_.tp() > 1 && !q_.state_only() && q_.model.vocab % q_.tp() != 0) {
    add("pad-vocab", "--pad-vocab 128", [](RunConfig& o) { o.vocab_multiple = 128; });
  }
}

void Neighborhood::schedules() {
  if (!q_.pipelined()) return;
  const auto take = [&](ScheduleChoice schedule, std::int64_t chunks) {
    if (q_.schedule == schedule && q_.chunks == chunks) return;
    std::string flags = q_.schedule == schedule ? "" : str("--schedule ", schedule);
    if (q_.chunks != chunks) flags += str(flags.empty() ? "" : " ", "--chunks ", chunks);
    add_same_parts("schedule", flags, [&](RunConfig& o) {
      o.schedule = schedule;
      o.chunks = static_cast<int>(chunks);
    });
  };
  take(ScheduleChoice::one_f_one_b, 1);
  const std::int64_t most = q_.model.layers / q_.pp();
  for (std::int64_t v = 2; v <= most; ++v) {
    if (v == 2 || v == 4 || v == most) {
      if (q_.model.layers % (v * q_.pp()) == 0) take(ScheduleChoice::interleaved, v);
    }
  }
  take(ScheduleChoice::zb_h1, 1);
  if (q_.split == "even" && !q_.state_only()) {
    add_same_parts("split", "--split work", [](RunConfig& o) { o.split = "work"; });
  }
}

void Neighborhood::mesh(const char* family, Axes axes) {
  if (!axes.replicas_divide()) return;
  // Fewer ranks that shard state may be too few for the blocks of experts.
  if (!axes.experts_divide()) axes.set(Axis::ep, std::gcd(q_.ep(), axes.shards()));
  const int cp = axes.size(Axis::cp);
  if (cp > q_.cp() && q_.seq / cp < kLeastContextTokens) return;
  // Keeps the global batch: with more data-parallel ranks each has fewer micro-batches, then
  // smaller ones.
  const int dp = axes.dp();
  const std::int64_t each = q_.global_batch / dp;
  if (q_.global_batch % dp != 0) return;
  const std::int64_t micro = each % q_.micro_batch == 0 ? q_.micro_batch : each;
  if (micro > q_.micro_batch) return;
  std::vector<std::string> flags;
  const auto flag = [&](const std::string& name, std::int64_t now, std::int64_t then) {
    if (now != then) flags.push_back(str(name, " ", then));
  };
  for (const Axis axis : kFactorAxes) flag(axis_flag(axis), q_.axes.given(axis), axes.given(axis));
  flag("--ep", q_.ep(), axes.size(Axis::ep));
  flag("--micro-batch", q_.micro_batch, micro);
  flag("--grad-accum", q_.grad_accum, each / micro);
  add(family, join(flags, " "), [&](RunConfig& o) {
    o.axes = axes;
    if (!o.has("cp-kind")) o.cp_kind = ContextKind::automatic;
    o.micro_batch = micro, o.grad_accum = each / micro;
  });
}

// Gives one axis a smaller size, which divides its own, and lets each other axis grow instead.
void Neighborhood::resize(Axis axis, int size) {
  const int own = q_.axes.given(axis);
  if (size < 1 || size == own || own % size != 0) return;
  for (const Axis other : kPrintedAxes) {
    if (other == axis || other == Axis::dp_replicate || !multiplies_ranks(other)) continue;
    if (axis == Axis::dp_shard && other == Axis::cp) continue;  // contexts() adds these
    Axes axes = q_.axes;
    axes.set_given(axis, size);
    axes.set_given(other, q_.axes.given(other) * (own / size));
    mesh("mesh", axes);
  }
}

void Neighborhood::meshes() {
  // A vocabulary padded for this tp hides the original size. CPU ranks share memory only if there
  // are several.
  if (q_.vocab_multiple > 1 || q_.hardware.cpu || q_.world() == 1) return;
  if (q_.split != "even" && q_.split != "work") return;
  for (const Axis axis : kFactorAxes) {
    const int own = q_.axes.given(axis);
    if (own % 2 == 0) resize(axis, own / 2);
  }
  if (q_.tp() > q_.per_node) resize(Axis::tp, q_.per_node);
}

// The combinations with the least memory on this mesh: with this reduce policy, and with gradients
// that are reduced every micro-batch.
void Neighborhood::all_at_once() {
  std::vector<std::string> flags;
  if (q_.averages_gradients() && q_.zero < 3) flags.emplace_back("--zero 3");
  const std::vector<int> cuts =
      q_.state_only() ? std::vector<int>{1} : expert_rank_counts(q_.model, q_.axes);
  const int ep = std::max(q_.ep(), cuts.back());
  if (ep > q_.ep()) flags.push_back(str("--ep ", ep));
  if (q_.recompute != Recompute::full) flags.emplace_back("--recompute full");
  if (fuses_) flags.emplace_back("--attention fused");
  const std::int64_t each = q_.micro_batch * q_.grad_accum;
  if (q_.micro_batch > 1) flags.push_back(str("--micro-batch 1 --grad-accum ", each));
  const auto combine = [&](RunConfig& o) {
    if (o.averages_gradients()) o.zero = 3;
    o.axes.set(Axis::ep, ep);
    o.recompute = Recompute::full;
    if (fuses_) o.attention = Attention::fused;
    o.micro_batch = 1, o.grad_accum = each;
  };
  if (flags.size() > 1) add("all", join(flags, " "), combine);
  if (q_.zero < 2 || q_.policy() == ReducePolicy::each) return;
  flags.emplace_back("--grad-reduce each");
  add("all", join(flags, " "), [&](RunConfig& o) {
    combine(o);
    o.grad_reduce = ReducePolicy::each;
  });
}

}  // namespace

void for_each_neighbor(const RunConfig& q, const std::function<void(Edit&)>& visit) {
  Neighborhood all(q, visit);
  all.replicas();
  all.stages();
  all.experts();
  all.recomputation();
  all.batches();
  all.contexts();
  all.reductions();
  all.buckets();
  all.overlaps();
  all.schedules();
  all.meshes();
  all.all_at_once();
}

Candidate Candidate::of(RunConfig config) {
  resolve_in_place(config);
  const double memory = needed_memory(config);
  return of_settled(std::move(config), memory);
}

Candidate Candidate::of_settled(RunConfig config, double memory) {
  const bool fits = memory <= usable_memory(config.hardware);
  return {std::move(config), memory, fits, 0, {}};
}

std::optional<Candidate> Candidate::beside(const RunConfig& now, RunConfig config) {
  std::optional<Candidate> candidate = of_settled(std::move(config), 0);
  if (!candidate->resolve_beside(now)) candidate.reset();
  return candidate;
}

bool Candidate::resolve_beside(const RunConfig& now, const Programs* programs) {
  if (newly_lacks(config, now)) return false;
  try {
    resolve_in_place(config);
    memory = programs != nullptr ? needed_memory(config, *programs) : needed_memory(config);
  } catch (const UsageError&) {  // impossible
    return false;
  }
  fits = memory <= usable_memory(config.hardware);
  return true;
}

bool Candidate::time_step(double longest, const PartTimes* parts) {
  constexpr double kRounding = 1e-9;
  const Step described = parts != nullptr ? describe_step(config, *parts) : describe_step(config);
  if (least_step_time(described) * (1 - kRounding) > longest) return false;
  step = step_time(described).step();
  interval = step_interval(config, step);
  return true;
}

Candidate candidate_of(const Plan& plan) {
  return {plan.question, plan.needed(), plan.fits, plan.time.step(), plan.interval};
}

std::optional<Candidate> at_stage(const RunConfig& q, int stage) {
  RunConfig other = q.at_stage(stage);
  other.grad_reduce.reset();
  return Candidate::beside(q, std::move(other));
}

bool better(const Candidate& a, const Candidate& b) {
  if (a.fits != b.fits) return a.fits;
  const bool alike = a.step == b.step || indistinguishable(a.step, a.interval, b.step, b.interval);
  if (alike && a.config.zero != b.config.zero) return a.config.zero < b.config.zero;
  return a.step < b.step;
}

}  // namespace tessera::planner
