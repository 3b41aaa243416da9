#include "tessera/planner/parameters.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

using Segment = ParamSpec::Segment;

class ParamBuilder {
 public:
  ParamBuilder(const ModelShape& shape, int tp) : shape_(shape), tp_(tp) {}

  void whole(const std::string& name, std::int64_t length) { add(name, {length}, -1, {}); }
  void norm(const std::string& name) {
    whole(name + ".weight", shape_.hidden);
    if (shape_.biases.norm) whole(name + ".bias", shape_.hidden);
  }
  void rows(const std::string& name, std::int64_t in, const std::vector<Segment>& segments,
            bool bias) {
    std::int64_t out = 0;
    for (const Segment& segment : segments) out += segment.length;
    const std::vector<Segment> kept = segments.size() > 1 ? segments : std::vector<Segment>();
    add(name + ".weight", {out, in}, 0, kept);
    if (bias) add(name + ".bias", {out}, 0, kept);
  }
  void columns(const std::string& name, std::int64_t in, bool bias) {
    add(name + ".weight", {shape_.hidden, in}, 1, {});
    if (bias) whole(name + ".bias", shape_.hidden);
  }
  Segment cut(std::int64_t length, std::int64_t most) const {
    return {length, std::min<std::int64_t>(most, tp_)};
  }
  std::vector<ParamSpec> all;

 private:
  void add(const std::string& name, std::vector<std::int64_t> sizes, int dim,
           std::vector<Segment> segments) {
    ParamSpec& spec = all.emplace_back();
    spec.name = name;
    spec.shape = std::move(sizes);
    if (tp_ > 1 && dim >= 0) spec.cuts = {{Axis::tp, dim, std::move(segments)}};
  }
  const ModelShape& shape_;
  const int tp_;
};

}  // namespace

std::vector<ParamSpec> model_params(const ModelShape& shape, int tp, const ModelPart& part) {
  const std::int64_t h = shape.hidden, q = shape.q_width(), kv = shape.kv_width();
  ParamBuilder build(shape, tp);
  const bool copy = part.head && shape.tied && !part.embedding;
  if (part.embedding) build.rows("tok", h, {{shape.vocab, tp}}, false);
  if (part.embedding && shape.positions > 0) {
    ParamSpec& positions = build.all.emplace_back();
    positions.name = "pos.weight";
    positions.shape = {shape.positions, h};
  }
  for (std::int64_t layer = part.first_layer; layer < part.last_layer; ++layer) {
    const std::string block = str("blocks.", layer, ".");
    build.norm(block + "norm1");
    build.rows(
        block + "qkv", h,
        {build.cut(q, shape.heads), build.cut(kv, shape.kv_heads), build.cut(kv, shape.kv_heads)},
        shape.biases.qkv);
    if (shape.qk_norm) {
      build.whole(block + "q_norm.weight", shape.head_dim());
      build.whole(block + "k_norm.weight", shape.head_dim());
    }
    build.columns(block + "proj", q, shape.biases.out);
    if (shape.post_norms) build.norm(block + "post_norm1");
    build.norm(block + "norm2");
    std::vector<Segment> wide(shape.swiglu ? 2 : 1, build.cut(shape.ffn, shape.ffn));
    build.rows(block + "fc", h, wide, shape.biases.mlp);
    build.columns(block + "proj2", shape.ffn, shape.biases.mlp);
    if (shape.post_norms) build.norm(block + "post_norm2");
  }
  if (part.head) {
    if (copy) build.rows("tok", h, {{shape.vocab, tp}}, false);
    build.norm("norm");
    if (!shape.tied) build.rows("head", h, {{shape.vocab, tp}}, false);
  }
  return build.all;
}

std::vector<int> layers_of_stages(const ModelShape& shape, int stages, const std::string& split) {
  const int layers = static_cast<int>(shape.layers);
  std::vector<int> counts;
  const auto evenly = [&](int count, int among) {
    for (int s = 0; s < among; ++s) counts.push_back(count / among + (s < count % among ? 1 : 0));
  };
  if (split == "even" || layers < stages || (split == "work" && stages == 1)) {
    evenly(layers, stages);
    return counts;
  }
  if (split == "work") {
    // Layers cost the same, so what the last stage has says all.
    const auto layer = static_cast<double>(shape.layer_params());
    const double head = static_cast<double>(shape.vocab) * static_cast<double>(shape.hidden);
    int best = 1;
    double least = std::numeric_limits<double>::infinity();
    for (int last = 1; last <= layers - stages + 1; ++last) {
      const int most = (layers - last + stages - 2) / (stages - 1);  // of the other stages
      const double worst = std::max(most * layer, last * layer + head);
      if (worst <= least) least = worst, best = last;
    }
    evenly(layers - best, stages - 1);
    counts.push_back(best);
    return counts;
  }
  std::int64_t sum = 0;
  bool good = true;
  for (std::size_t begin = 0; begin <= split.size();) {
    const std::size_t end = std::min(split.find(',', begin), split.size());
    int count = 0;
    const auto [rest, error] = std::from_chars(split.data() + begin, split.data() + end, count);
    good = good && error == std::errc() && rest == split.data() + end && count > 0;
    counts.push_back(count);
    sum += count;
    begin = end + 1;
  }
  if (!good || sum != layers || static_cast<int>(counts.size()) != stages) {
    throw UsageError(str("--split: got ", quote(split), "; wanted even, work, or the layers of ",
                         stages, stages == 1 ? " stage" : " stages", ", at least one each and ",
                         layers, " in all"));
  }
  return counts;
}

ModelPart part_of_stage(const std::vector<int>& layers_of_stages, int stage) {
  const bool last = stage + 1 == static_cast<int>(layers_of_stages.size());
  ModelPart part{0, 0, stage == 0, last};
  for (int s = 0; s <= stage; ++s) {
    part.first_layer = part.last_layer;
    part.last_layer += layers_of_stages[static_cast<std::size_t>(s)];
  }
  return part;
}

std::vector<ParamSpec> model_params(const ModelShape& shape, int tp) {
  return model_params(shape, tp, {0, shape.layers, true, true});
}

}  // namespace tessera::planner
