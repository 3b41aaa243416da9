#include "tessera/planner/changes.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/places.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

class Changes {
 public:
  explicit Changes(const Question& q) : q_(q) {}

  void stages();
  void recomputation();
  void batches();
  void buckets();
  void overlaps();
  void schedules();
  void meshes();
  void all_at_once();
  std::vector<Change> take() { return std::move(all_); }

 private:
  using Edit = std::function<void(Question&)>;
  void add(const char* family, std::string flags, const Edit& edit);
  // What every part of the model computes stays as it is.
  void around(const char* family, std::string flags, const Edit& edit) {
    add(family, std::move(flags), edit);
    all_.back().same_parts = true;
  }
  void mesh(int tp, int pp, int dp);
  void replicas();

  const Question& q_;
  std::vector<Change> all_;
};

void Changes::add(const char* family, std::string flags, const Edit& edit) {
  Change& change = all_.emplace_back(Change{family, std::move(flags), q_});
  edit(change.question);
}

void Changes::stages() {
  if (q_.dp() == 1) return;
  for (int stage = 0; stage <= 3; ++stage) {
    if (stage != q_.zero) {
      const bool drops = stage == 0 && q_.replicas() > 1;
      around("zero", str("--zero ", stage, drops ? " --dp-replicate 1" : ""),
             [&](Question& o) { o = o.at_stage(stage); });
    }
  }
  if (q_.zero > 0) replicas();
  if (q_.zero >= 2 && q_.micros() > 1) {
    const bool each = q_.policy() == ReducePolicy::each;
    around("grad-reduce", each ? "--grad-reduce last" : "--grad-reduce each",
           [&](Question& o) { o.grad_reduce = each ? ReducePolicy::last : ReducePolicy::each; });
  }
  // Only Tessera sends gradients in another type than it keeps them in.
  if (q_.software == Software::tessera && q_.layout.grad == 4 &&
      q_.grad_compression == GradCompression::none) {
    around("grad-compression", "--grad-compression bf16",
           [](Question& o) { o.grad_compression = GradCompression::bf16; });
  }
  if (q_.zero == 3) {
    around("keep-params", q_.keep_params ? "--no-keep-params" : "--keep-params",
           [](Question& o) { o.keep_params = !o.keep_params; });
  }
}

// [Note: hybrid sharding] Replicas that fill nodes; and none, or fewer, where there are some.
void Changes::replicas() {
  std::vector<int> counts = replica_counts(q_);
  counts.push_back(1);
  for (int fewer = q_.replicas() / 2; fewer > 1; fewer /= 2) counts.push_back(fewer);
  for (const int count : counts) {
    if (count == q_.replicas() || q_.dp() % count != 0) continue;
    around("dp-replicate", str("--dp-replicate ", count),
           [&](Question& o) { o.axes.set_given(Axis::dp_replicate, count); });
  }
}

void Changes::recomputation() {
  for (const Recompute what : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (what == q_.recompute) continue;
    add("recompute", str("--recompute ", name(what)), [&](Question& o) { o.recompute = what; });
  }
  if (q_.attention == Attention::unfused && q_.hardware.fused_attention) {
    add("attention", "--attention fused", [](Question& o) { o.attention = Attention::fused; });
  }
}

// The same sequences in fewer or more micro-batches.
void Changes::batches() {
  const std::int64_t each = q_.micro_batch * q_.grad_accum;
  const auto take = [&](std::int64_t micro) {
    if (micro < 1 || each % micro != 0) return;
    add("micro-batch", str("--micro-batch ", micro, " --grad-accum ", each / micro),
        [&](Question& o) { o.micro_batch = micro, o.grad_accum = each / micro; });
  };
  for (std::int64_t micro = q_.micro_batch * 2; micro <= std::min(each, q_.micro_batch * 16);
       micro *= 2) {
    take(micro);
  }
  std::int64_t micro = q_.micro_batch;
  for (int i = 0; i < 5 && micro % 2 == 0; ++i) take(micro /= 2);
  if (micro > 1) take(1);
}

void Changes::buckets() {
  if (q_.dp() == 1) return;
  double params = 0;
  for (const auto& chunks : stage_shares(q_))
    params = std::max(params, trained_on_rank(q_, chunks));
  Question open = q_;
  open.bucket_bytes = 0;
  const double usual = bucket_bytes(open, params), now = bucket_bytes(q_, params);
  for (const double bytes : {usual, std::round(now / 4), now * 4}) {
    if (bytes == now || bytes < 1024 || bytes > params * q_.layout.grad) continue;
    around("bucket-size", str("--bucket-size ", exact_size(bytes)),
           [&](Question& o) { o.bucket_bytes = bytes; });
  }
}

void Changes::overlaps() {
  if (!q_.overlap_grad_reduce) {
    around("overlap-grad-reduce", "--overlap-grad-reduce",
           [](Question& o) { o.overlap_grad_reduce = true; });
  }
  if (!q_.overlap_param_gather) {
    around("overlap-param-gather", "--overlap-param-gather",
           [](Question& o) { o.overlap_param_gather = true; });
  }
  if (q_.tp() > 1) {
    add("sequence-parallel",
        q_.sequence_parallel ? "--no-sequence-parallel" : "--sequence-parallel",
        [](Question& o) { o.sequence_parallel = !o.sequence_parallel; });
  }
  if (q_.tp() > 1 && !q_.state_only() && q_.model.vocab % q_.tp() != 0) {
    add("pad-vocab", "--pad-vocab 128", [](Question& o) { o.vocab_multiple = 128; });
  }
}

void Changes::schedules() {
  if (q_.pp() == 1) return;
  const auto take = [&](const char* schedule, std::int64_t chunks) {
    if (q_.schedule == schedule && q_.chunks == chunks) return;
    std::string flags = q_.schedule == schedule ? "" : str("--schedule ", schedule);
    if (q_.chunks != chunks) flags += str(flags.empty() ? "" : " ", "--chunks ", chunks);
    around("schedule", flags, [&](Question& o) {
      o.schedule = schedule;
      o.chunks = static_cast<int>(chunks);
    });
  };
  take("1f1b", 1);
  const std::int64_t most = q_.model.layers / q_.pp();
  for (std::int64_t v = 2; v <= most; ++v) {
    if (v == 2 || v == 4 || v == most) {
      if (q_.model.layers % (v * q_.pp()) == 0) take("interleaved", v);
    }
  }
  take("zb-h1", 1);
  if (q_.split == "even" && !q_.state_only()) {
    around("split", "--split work", [](Question& o) { o.split = "work"; });
  }
}

void Changes::mesh(int tp, int pp, int dp) {
  if (tp < 1 || pp < 1 || dp < 1 || tp * pp * dp != q_.world()) return;
  // The global batch stays: more replicas take fewer micro-batches each, then smaller ones.
  const std::int64_t each = q_.global_batch / dp;
  if (q_.global_batch % dp != 0) return;
  const std::int64_t micro = each % q_.micro_batch == 0 ? q_.micro_batch : each;
  if (micro > q_.micro_batch) return;
  std::vector<std::string> flags;
  const auto flag = [&](const char* name, std::int64_t now, std::int64_t then) {
    if (now != then) flags.push_back(str("--", name, " ", then));
  };
  flag("tp", q_.tp(), tp);
  flag("pp", q_.pp(), pp);
  flag("dp", q_.dp(), dp);
  flag("micro-batch", q_.micro_batch, micro);
  flag("grad-accum", q_.grad_accum, each / micro);
  add("mesh", join(flags, " "), [&](Question& o) {
    o.axes.set(Axis::tp, tp), o.axes.set(Axis::pp, pp), o.axes.set_dp(dp);
    o.micro_batch = micro, o.grad_accum = each / micro;
  });
}

void Changes::meshes() {
  // What was rounded up for this tp cannot be told apart from what was asked for; and a CPU's ranks
  // share memory only where there are several.
  if (q_.vocab_multiple > 1 || q_.hardware.cpu || q_.world() == 1) return;
  if (q_.split != "even" && q_.split != "work") return;
  const int tp = q_.tp(), pp = q_.pp(), dp = q_.dp();
  if (tp % 2 == 0) mesh(tp / 2, pp, dp * 2), mesh(tp / 2, pp * 2, dp);
  if (pp % 2 == 0) mesh(tp, pp / 2, dp * 2), mesh(tp * 2, pp / 2, dp);
  if (dp % 2 == 0) mesh(tp * 2, pp, dp / 2), mesh(tp, pp * 2, dp / 2);
  if (tp > q_.per_node && tp % q_.per_node == 0) {
    mesh(q_.per_node, pp, dp * (tp / q_.per_node));
    mesh(q_.per_node, pp * (tp / q_.per_node), dp);
  }
}

// What takes least memory of all on this mesh.
void Changes::all_at_once() {
  std::vector<std::string> flags;
  if (q_.dp() > 1 && q_.zero < 3) flags.emplace_back("--zero 3");
  if (q_.recompute != Recompute::full) flags.emplace_back("--recompute full");
  const bool fuses = q_.attention == Attention::unfused && q_.hardware.fused_attention;
  if (fuses) flags.emplace_back("--attention fused");
  const std::int64_t each = q_.micro_batch * q_.grad_accum;
  if (q_.micro_batch > 1) flags.push_back(str("--micro-batch 1 --grad-accum ", each));
  if (flags.size() < 2) return;
  add("all", join(flags, " "), [&](Question& o) {
    if (o.dp() > 1) o.zero = 3;
    o.recompute = Recompute::full;
    if (fuses) o.attention = Attention::fused;
    o.micro_batch = 1, o.grad_accum = each;
  });
}

}  // namespace

std::string exact_size(double bytes) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(bytes, 9e18)));
  std::string text = format_bytes(whole);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());  // one word of a shell
  return parse_bytes(text) == whole ? text : str(whole);
}

std::vector<Change> possible_changes(const Question& q) {
  Changes changes(q);
  changes.stages();
  changes.recomputation();
  changes.batches();
  changes.buckets();
  changes.overlaps();
  changes.schedules();
  changes.meshes();
  changes.all_at_once();
  return changes.take();
}

}  // namespace tessera::planner
