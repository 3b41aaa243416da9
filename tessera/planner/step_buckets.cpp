#include "tessera/planner/step_buckets.h"

#include <algorithm>
#include <limits>

#include "tessera/core/shard.h"

namespace tessera::planner {
namespace {

// Limit on listed buckets. Beyond it they are counted in groups: their latencies add up, and the
// overlap changes by less than 1/1024.
constexpr std::size_t kMaxBuckets = 1024;

struct Filled {
  double bytes = 0, ready = 0;
  int calls = 1;
  bool of_experts = false;
};

class Filler {
 public:
  explicit Filler(double limit) : limit_(limit) {}

  void add(double bytes, double ready, bool of_experts) {
    Filled& open = of_experts ? experts_ : open_;
    open.bytes += bytes;
    open.ready = ready;
    if (open.bytes >= limit_) close(open);
  }
  std::vector<Filled> take() {
    if (open_.bytes > 0) close(open_);
    if (experts_.bytes > 0) close(experts_);
    return std::move(all_);
  }

 private:
  void close(Filled& open) {
    all_.push_back(open);
    open.bytes = open.ready = 0;
  }
  double limit_;
  Filled open_, experts_{0, 0, 1, true};
  std::vector<Filled> all_;
};

std::vector<Filled> in_groups(const std::vector<Filled>& all) {
  const std::size_t each = (all.size() + kMaxBuckets - 1) / kMaxBuckets;
  std::vector<Filled> groups;
  for (const bool of_experts : {false, true}) {
    Filled group{0, 0, 0, of_experts};
    for (const Filled& bucket : all) {
      if (bucket.of_experts != of_experts) continue;
      group = {group.bytes + bucket.bytes, bucket.ready, group.calls + 1, of_experts};
      if (group.calls < static_cast<int>(each)) continue;
      groups.push_back(group);
      group = {0, 0, 0, of_experts};
    }
    if (group.calls > 0) groups.push_back(group);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Filled& a, const Filled& b) { return a.ready < b.ready; });
  return groups;
}

StepBuckets listed(const std::vector<Filled>& all) {
  StepBuckets buckets;
  buckets.size_of.reserve(all.size());
  buckets.ready.reserve(all.size());
  for (const Filled& each : all) {
    const auto same = [&](const StepBuckets::Size& size) {
      return size.bytes == each.bytes && size.calls == each.calls &&
             size.of_experts == each.of_experts;
    };
    auto at = std::find_if(buckets.sizes.begin(), buckets.sizes.end(), same);
    if (at == buckets.sizes.end()) {
      at = buckets.sizes.insert(at, {each.bytes, each.calls, 0, each.of_experts});
    }
    ++at->count;
    buckets.size_of.push_back(static_cast<std::uint16_t>(at - buckets.sizes.begin()));
    buckets.ready.push_back(each.ready);
  }
  return buckets;
}

}  // namespace

int StepBuckets::calls() const {
  int all = 0;
  for (const Size& size : sizes) all += size.calls * size.count;
  return all;
}

GradSizes::GradSizes(const RunConfig& resolved, const Programs& programs) : q_(resolved) {
  const auto list = [&](const Program& program, Grads& to) {
    each_param(program, [&](const Operation& op, const Param& param, std::int64_t expert) {
      if (op.adapter < 0 && q_.model.lora.any()) return;
      add(param.tied ? copy_ : to, param.elements_on_rank(program.axes.size(Axis::tp)),
          expert >= 0);
    });
  };
  layer_.reserve(16);
  list(programs.layer, layer_);
  list(programs.dense_layer, dense_);
  list(programs.embedding, embedding_);
  list(programs.head, head_);
}

void GradSizes::add(Grads& to, std::int64_t elements, bool of_expert) const {
  const int shards = of_expert ? q_.expert_shards() : q_.shards();
  if (q_.software == Software::tessera) elements = shard_size(elements, shards) * shards;
  to.push_back({q_.travel() * static_cast<double>(elements), of_expert && q_.ep() > 1});
}

double GradSizes::bytes(const StageLayers& chunk) const {
  // The engine's bucket size is the same on ranks with other experts.
  const bool shared = q_.software == Software::tessera;
  const auto sum = [&](const Grads& grads) {
    double all = 0;
    for (const Grad& grad : grads) all += grad.of_expert && shared ? 0 : grad.bytes;
    return all;
  };
  return static_cast<double>(chunk.layers - chunk.dense) * sum(layer_) +
         static_cast<double>(chunk.dense) * sum(dense_) + (chunk.embedding ? sum(embedding_) : 0) +
         (chunk.head ? sum(head_) : 0) + (chunk.head && !chunk.embedding ? sum(copy_) : 0);
}

double GradSizes::limit(const std::vector<StageLayers>& chunks) const {
  if (q_.bucket_bytes > 0) return q_.bucket_bytes;
  double all = 0;
  for (const StageLayers& chunk : chunks) all += bytes(chunk);
  return static_cast<double>(default_bucket_bytes(static_cast<std::int64_t>(std::min(all, 4e18))));
}

StepBuckets GradSizes::fill(const StageLayers& chunk, double limit,
                            const BackwardParts& backward) const {
  Filler filler(limit);
  const auto share = [&](double seconds) {
    return backward.all > 0 ? std::min(1.0, seconds / backward.all) : 1.0;
  };
  const auto outside = [&](const Grads& grads, double ready) {
    for (std::size_t i = grads.size(); i-- > 0;) {
      filler.add(grads[i].bytes, ready, grads[i].of_expert);
    }
  };
  const auto of_head = [&](double ready) {
    if (!chunk.head) return;
    outside(head_, ready);
    if (!chunk.embedding) outside(copy_, ready);
  };
  const bool last = q_.software == Software::tessera;
  if (!last) of_head(share(backward.head));
  const auto layers = [&](const Grads& grads, std::int64_t count, double before, double seconds) {
    double bytes = 0;
    for (const Grad& grad : grads) bytes += grad.bytes;
    for (std::int64_t layer = 0; layer < count; ++layer) {
      double done = 0;  // fraction of the layer
      for (std::size_t i = grads.size(); i-- > 0;) {
        done += grads[i].bytes / bytes;
        filler.add(grads[i].bytes, share(before + (static_cast<double>(layer) + done) * seconds),
                   grads[i].of_expert);
      }
    }
    return before + static_cast<double>(count) * seconds;
  };
  double done = layers(layer_, chunk.layers - chunk.dense, backward.head, backward.layer);
  done = layers(dense_, chunk.dense, done, backward.dense);
  if (last) of_head(share(done));
  if (chunk.embedding) outside(embedding_, 1);
  const std::vector<Filled> all = filler.take();
  return listed(all.size() > kMaxBuckets ? in_groups(all) : all);
}

}  // namespace tessera::planner
