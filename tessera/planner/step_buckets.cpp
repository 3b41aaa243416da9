#include "tessera/planner/step_buckets.h"

#include <algorithm>
#include <limits>

#include "tessera/core/bucket_size.h"
#include "tessera/core/grad_compression.h"
#include "tessera/core/lora.h"
#include "tessera/core/shard.h"

namespace tessera::planner {
namespace {

// More buckets than these are counted in groups of them: their latencies add up, and what overlaps
// changes by less than one in so many.
constexpr std::size_t kMostBuckets = 1024;

// What a rank has of a dim that so many share; what does not divide is padded until it does.
std::int64_t dim_on_rank(std::int64_t length, std::int64_t parts) {
  return (length + parts - 1) / parts;
}

struct Filled {
  double bytes = 0, ready = 0;
  int calls = 1;
};

class Filler {
 public:
  explicit Filler(double limit) : limit_(limit) {}

  void add(double whole, double travel, double ready) {
    whole_ += whole;
    open_.bytes += travel;
    open_.ready = ready;
    if (whole_ >= limit_) close();
  }
  std::vector<Filled> take() {
    if (whole_ > 0) close();
    return std::move(all_);
  }

 private:
  void close() {
    all_.push_back(open_);
    open_ = {};
    whole_ = 0;
  }
  double limit_;
  double whole_ = 0;
  Filled open_;
  std::vector<Filled> all_;
};

std::vector<Filled> in_groups(const std::vector<Filled>& all) {
  const std::size_t each = (all.size() + kMostBuckets - 1) / kMostBuckets;
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

GradSizes::GradSizes(const Question& settled) : q_(settled) {
  if (q_.model.lora.any()) {
    add_adapters(q_.model);
  } else {
    add_model(q_.model);
  }
}

void GradSizes::add(Grads& to, std::int64_t rows, std::int64_t columns) const {
  const auto padded = [&](std::int64_t elements) {
    if (q_.software != Software::tessera) return elements;
    return shard_size(elements, q_.shards()) * q_.shards();
  };
  const double element = q_.travel();
  const std::int64_t own = padded(columns > 0 ? rows * columns : rows);
  Grad grad;
  grad.travel = grad.whole = element * static_cast<double>(own);
  if (q_.compression() == GradCompression::powersgd) {
    const std::int64_t rank = power_sgd_rank(rows, columns, q_.power_sgd);
    if (rank > 0) {
      grad.travel = element * static_cast<double>(padded(rows * rank) + padded(columns * rank));
    }
  }
  to.push_back(grad);
}

// As model_params() lists them; with the names, which it makes, that would take longer than all
// else that is described.
void GradSizes::add_model(const ModelShape& m) {
  const std::int64_t h = m.hidden, tp = q_.tp();
  const auto norm = [&](Grads& to) {
    add(to, h);
    if (m.biases.norm) add(to, h);
  };
  const std::int64_t kv = 2 * dim_on_rank(m.kv_width(), std::min<std::int64_t>(m.kv_heads, tp));
  const std::int64_t qkv = dim_on_rank(m.q_width(), std::min<std::int64_t>(m.heads, tp)) + kv;
  const std::int64_t wide =
      (m.swiglu ? 2 : 1) * dim_on_rank(m.ffn, std::min<std::int64_t>(m.ffn, tp));
  layer_.reserve(12);
  norm(layer_);
  add(layer_, qkv, h);
  if (m.biases.qkv) add(layer_, qkv);
  add(layer_, h, dim_on_rank(m.q_width(), tp));
  if (m.biases.out) add(layer_, h);
  norm(layer_);
  add(layer_, wide, h);
  if (m.biases.mlp) add(layer_, wide);
  add(layer_, h, dim_on_rank(m.ffn, tp));
  if (m.biases.mlp) add(layer_, h);

  const std::int64_t table = dim_on_rank(m.vocab, tp);
  add(embedding_, table, h);
  if (m.positions > 0) add(embedding_, m.positions, h);
  norm(head_);
  if (m.tied) {
    add(copy_, table, h);
  } else {
    add(head_, table, h);
  }
}

void GradSizes::add_adapters(const ModelShape& m) {
  const std::int64_t rank = m.lora.rank, tp = q_.tp();
  for (const Adapter& adapter : adapters_of(m)) {
    std::int64_t rows = adapter.out;
    if (!adapter.cut_inputs) {
      rows = adapter.segments.empty() ? dim_on_rank(adapter.out, tp) : 0;
      for (const ParamSpec::Segment& segment : adapter.segments) {
        const std::int64_t parts = segment.parts == 0 ? tp : segment.parts;
        rows += dim_on_rank(segment.length, std::min(parts, tp));
      }
    }
    add(layer_, rank, adapter.cut_inputs ? dim_on_rank(adapter.in, tp) : adapter.in);
    add(layer_, rows, rank);
  }
}

double GradSizes::bytes(const StageShare& chunk) const {
  const auto sum = [](const Grads& grads) {
    double all = 0;
    for (const Grad& grad : grads) all += grad.whole;
    return all;
  };
  return static_cast<double>(chunk.layers) * sum(layer_) + (chunk.embedding ? sum(embedding_) : 0) +
         (chunk.head ? sum(head_) : 0) + (chunk.head && !chunk.embedding ? sum(copy_) : 0);
}

double GradSizes::limit(const std::vector<StageShare>& chunks) const {
  if (q_.bucket_bytes > 0) return q_.bucket_bytes;
  double all = 0;
  for (const StageShare& chunk : chunks) all += bytes(chunk);
  return static_cast<double>(default_bucket_bytes(static_cast<std::int64_t>(std::min(all, 4e18))));
}

StepBuckets GradSizes::fill(const StageShare& chunk, double limit,
                            const BackwardParts& backward) const {
  Filler filler(limit);
  const auto share = [&](double seconds) {
    return backward.all > 0 ? std::min(1.0, seconds / backward.all) : 1.0;
  };
  const auto outside = [&](const Grads& grads, double ready) {
    for (std::size_t i = grads.size(); i-- > 0;) filler.add(grads[i].whole, grads[i].travel, ready);
  };
  const auto of_head = [&](double ready) {
    if (!chunk.head) return;
    outside(head_, ready);
    if (!chunk.embedding) outside(copy_, ready);
  };
  const bool last = q_.software == Software::tessera;
  if (!last) of_head(share(backward.head));
  double layer_bytes = 0;
  for (const Grad& grad : layer_) layer_bytes += grad.whole;
  for (std::int64_t layer = 0; layer < chunk.layers; ++layer) {
    double done = 0;  // of the layer
    for (std::size_t i = layer_.size(); i-- > 0;) {
      done += layer_[i].whole / layer_bytes;
      filler.add(layer_[i].whole, layer_[i].travel,
                 share(backward.head + (static_cast<double>(layer) + done) * backward.layer));
    }
  }
  if (last) of_head(share(backward.head + static_cast<double>(chunk.layers) * backward.layer));
  if (chunk.embedding) outside(embedding_, 1);
  const std::vector<Filled> all = filler.take();
  return listed(all.size() > kMostBuckets ? in_groups(all) : all);
}

}  // namespace tessera::planner
