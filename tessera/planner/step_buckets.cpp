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
};

class Filler {
 public:
  explicit Filler(double limit) : limit_(limit) {}

  void add(double bytes, double ready) {
    open_.bytes += bytes;
    open_.ready = ready;
    if (open_.bytes >= limit_) close();
  }
  std::vector<Filled> take() {
    if (open_.bytes > 0) close();
    return std::move(all_);
  }

 private:
  void close() {
    all_.push_back(open_);
    open_ = {};
  }
  double limit_;
  Filled open_;
  std::vector<Filled> all_;
};

std::vector<Filled> in_groups(const std::vector<Filled>& all) {
  const std::size_t each = (all.size() + kMaxBuckets - 1) / kMaxBuckets;
  std::vector<Filled> groups;
  for (std::size_t i = 0; i < all.size(); i += each) {
    Filled group{0, 0, 0};
    for (std::size_t j = i; j < std::min(i + each, all.size()); ++j) {
      group = {group.bytes + all[j].bytes, all[j].ready, group.calls + 1};
    }
    groups.push_back(group);
  }
  return groups;
}

StepBuckets listed(const std::vector<Filled>& all) {
  StepBuckets buckets;
  buckets.size_of.reserve(all.size());
  buckets.ready.reserve(all.size());
  for (const Filled& each : all) {
    const auto same = [&](const StepBuckets::Size& size) {
      return size.bytes == each.bytes && size.calls == each.calls;
    };
    auto at = std::find_if(buckets.sizes.begin(), buckets.sizes.end(), same);
    if (at == buckets.sizes.end()) {
      at = buckets.sizes.insert(at, {each.bytes, each.calls, 0});
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

GradSizes::GradSizes(const RunConfig& settled, const Programs& programs) : q_(settled) {
  const auto list = [&](const Program& program, Grads& to) {
    for (const Operation& op : program.operations) {
      if (op.adapter < 0 && q_.model.lora.any()) continue;
      for (const Param& param : op.params) {
        add(param.tied ? copy_ : to, param.elements_on_rank(program.tp));
      }
    }
  };
  layer_.reserve(16);
  list(programs.layer, layer_);
  list(programs.embedding, embedding_);
  list(programs.head, head_);
}

void GradSizes::add(Grads& to, std::int64_t elements) const {
  if (q_.software == Software::tessera) {
    elements = shard_size(elements, q_.shards()) * q_.shards();
  }
  to.push_back(q_.travel() * static_cast<double>(elements));
}

double GradSizes::bytes(const StageLayers& chunk) const {
  const auto sum = [](const Grads& grads) {
    double all = 0;
    for (const double grad : grads) all += grad;
    return all;
  };
  return static_cast<double>(chunk.layers) * sum(layer_) + (chunk.embedding ? sum(embedding_) : 0) +
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
    for (std::size_t i = grads.size(); i-- > 0;) filler.add(grads[i], ready);
  };
  const auto of_head = [&](double ready) {
    if (!chunk.head) return;
    outside(head_, ready);
    if (!chunk.embedding) outside(copy_, ready);
  };
  const bool last = q_.software == Software::tessera;
  if (!last) of_head(share(backward.head));
  double layer_bytes = 0;
  for (const double grad : layer_) layer_bytes += grad;
  for (std::int64_t layer = 0; layer < chunk.layers; ++layer) {
    double done = 0;  // fraction of the layer
    for (std::size_t i = layer_.size(); i-- > 0;) {
      done += layer_[i] / layer_bytes;
      filler.add(layer_[i],
                 share(backward.head + (static_cast<double>(layer) + done) * backward.layer));
    }
  }
  if (last) of_head(share(backward.head + static_cast<double>(chunk.layers) * backward.layer));
  if (chunk.embedding) outside(embedding_, 1);
  const std::vector<Filled> all = filler.take();
  return listed(all.size() > kMaxBuckets ? in_groups(all) : all);
}

}  // namespace tessera::planner
