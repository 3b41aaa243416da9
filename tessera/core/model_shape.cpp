#include "tessera/core/model_shape.h"

#include <limits>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

ModelShape named_gpt(std::string name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t positions) {
  return {std::move(name), layers,    hidden, heads, heads, 4 * hidden,
          50257,           positions, false,  true,  true};
}

ModelShape named_llama(std::string name, std::int64_t layers, std::int64_t hidden,
                       std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn,
                       std::int64_t vocab, double rotary_base = 1e4) {
  return {std::move(name), layers, hidden, heads, kv_heads, ffn,
          vocab,           0,      true,   false, false,    rotary_base};
}

}  // namespace

std::int64_t ModelShape::layer_params() const {
  const std::int64_t kv = kv_heads * head_dim();
  const std::int64_t attention = 2 * hidden * hidden + 2 * hidden * kv;  // q, out; k, v
  const std::int64_t mlp = (swiglu ? 3 : 2) * hidden * ffn;
  const std::int64_t norms = 2 * hidden;
  const std::int64_t extra = biases ? (2 * hidden + 2 * kv) + (ffn + hidden) + 2 * hidden : 0;
  return attention + mlp + norms + extra;
}

std::int64_t ModelShape::embedding_params() const { return (vocab + positions) * hidden; }
std::int64_t ModelShape::final_norm_params() const { return (biases ? 2 : 1) * hidden; }
std::int64_t ModelShape::head_params() const { return tied ? 0 : vocab * hidden; }
std::int64_t ModelShape::params() const {
  return block_params() + embedding_params() + final_norm_params() + head_params();
}

const std::vector<ModelShape>& model_shapes() {
  static const std::vector<ModelShape> all = {
      // 256 tokens: bytes, or the digits of a small task.
      {"gpt-tiny", 4, 128, 4, 4, 512, 256, 256, false, true, true},
      named_llama("llama-tiny", 4, 128, 4, 2, 352, 256),
      named_gpt("gpt2-124m", 12, 768, 12, 1024),
      named_gpt("gpt2-355m", 24, 1024, 16, 1024),
      named_gpt("gpt2-774m", 36, 1280, 20, 1024),
      named_gpt("gpt2-xl", 48, 1600, 25, 1024),
      named_gpt("gpt3-125m", 12, 768, 12, 2048),
      named_gpt("gpt3-350m", 24, 1024, 16, 2048),
      named_gpt("gpt3-760m", 24, 1536, 16, 2048),
      named_gpt("gpt3-1.3b", 24, 2048, 16, 2048),  // the paper prints 24 heads of 128: 16 make 2048
      named_gpt("gpt3-2.7b", 32, 2560, 32, 2048),
      named_gpt("gpt3-6.7b", 32, 4096, 32, 2048),
      named_gpt("gpt3-13b", 40, 5120, 40, 2048),  // printed as 5140, which 40 heads do not divide
      named_gpt("gpt3-175b", 96, 12288, 96, 2048),
      named_llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000),
      named_llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000),
      named_llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000),
      named_llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256, 5e5),
      named_llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256, 5e5),
      named_llama("llama3.1-405b", 126, 16384, 128, 8, 53248, 128256, 5e5),
  };
  return all;
}

ModelShape find_model_shape(std::string_view name) {
  std::vector<std::string> names;
  for (const ModelShape& shape : model_shapes()) {
    if (shape.name == name) return shape;
    names.push_back(shape.name);
  }
  throw UsageError(str("model ", quote(name), " is unknown", did_you_mean(name, names),
                       "; there are ", join(names, ", "), ", or give its sizes"));
}

ModelShape gpt_shape(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t vocab, std::int64_t positions) {
  ModelShape shape;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = shape.kv_heads = heads;
  shape.ffn = 1;
  shape.vocab = vocab;
  shape.positions = positions;
  check(shape);  // before anything is multiplied
  shape.ffn = 4 * hidden;
  return shape;
}

void check(const ModelShape& shape) {
  const auto positive = [](const char* what, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) {
      throw UsageError(str(what, " is ", value, "; wanted 1 to ", most));
    }
  };
  // Within these bounds no count overflows 64 bits: 10^5 · (16 · 10^12) < 2^63.
  positive("layers", shape.layers, 100'000);
  positive("hidden", shape.hidden, 1'000'000);
  positive("heads", shape.heads, 100'000);
  positive("kv-heads", shape.kv_heads, shape.heads);
  positive("ffn", shape.ffn, 8'000'000);
  positive("vocab", shape.vocab, 100'000'000);
  if (shape.hidden % shape.heads != 0) {
    throw UsageError(str("hidden is ", shape.hidden, ", which ", shape.heads,
                         " heads do not divide; wanted a multiple of heads"));
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw UsageError(str("heads is ", shape.heads, ", which ", shape.kv_heads,
                         " kv-heads do not divide; wanted a multiple of kv-heads"));
  }
}

std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple) {
  return (vocab + multiple - 1) / multiple * multiple;
}

}  // namespace tessera
