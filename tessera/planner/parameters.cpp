#include "tessera/planner/parameters.h"

#include <algorithm>
#include <string>

#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

using Segment = ParamSpec::Segment;

class Builder {
 public:
  Builder(const ModelShape& shape, int tp) : shape_(shape), tp_(tp) {}

  void whole(const std::string& name, std::int64_t length) { add(name, {length}, -1, {}); }
  void norm(const std::string& name) {
    whole(name + ".weight", shape_.hidden);
    if (shape_.biases) whole(name + ".bias", shape_.hidden);
  }
  void rows(const std::string& name, std::int64_t in, const std::vector<Segment>& segments,
            bool bias) {
    std::int64_t out = 0;
    for (const Segment& segment : segments) out += segment.length;
    const std::vector<Segment> kept = segments.size() > 1 ? segments : std::vector<Segment>();
    add(name + ".weight", {out, in}, 0, kept);
    if (bias) add(name + ".bias", {out}, 0, kept);
  }
  void columns(const std::string& name, std::int64_t in) {
    add(name + ".weight", {shape_.hidden, in}, 1, {});
    if (shape_.biases) whole(name + ".bias", shape_.hidden);
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
    if (tp_ > 1) {
      spec.tp_dim = dim;
      spec.segments = std::move(segments);
    }
  }
  const ModelShape& shape_;
  const int tp_;
};

}  // namespace

std::vector<ParamSpec> model_params(const ModelShape& shape, int tp, const ModelPart& part) {
  const std::int64_t h = shape.hidden, kv = shape.kv_heads * shape.head_dim();
  Builder build(shape, tp);
  const bool copy = part.head && shape.tied && !part.embedding;
  if (part.embedding || copy) build.rows("tok", h, {{shape.vocab, tp}}, false);
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
        {build.cut(h, shape.heads), build.cut(kv, shape.kv_heads), build.cut(kv, shape.kv_heads)},
        shape.biases);
    build.columns(block + "proj", h);
    build.norm(block + "norm2");
    std::vector<Segment> wide(shape.swiglu ? 2 : 1, build.cut(shape.ffn, shape.ffn));
    build.rows(block + "fc", h, wide, shape.biases);
    build.columns(block + "proj2", shape.ffn);
  }
  if (part.head) {
    build.norm("norm");
    if (!shape.tied) build.rows("head", h, {{shape.vocab, tp}}, false);
  }
  return build.all;
}

ModelPart part_of_stage(const ModelShape& shape, int stages, int stage) {
  const std::int64_t each = shape.layers / stages, more = shape.layers % stages;
  const auto begin = [&](std::int64_t s) { return s * each + std::min(s, more); };
  return {begin(stage), begin(stage + 1), stage == 0, stage == stages - 1};
}

std::vector<ParamSpec> model_params(const ModelShape& shape, int tp) {
  return model_params(shape, tp, {0, shape.layers, true, true});
}

}  // namespace tessera::planner
