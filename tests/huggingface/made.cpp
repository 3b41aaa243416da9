#include "tests/huggingface/made.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tessera/checkpoint/save.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/shape_json.h"

namespace tessera::huggingface {
namespace {

using checkpoint::bytes_of;

ModelShape small(std::string name, std::int64_t kv_heads, Biases biases, bool tied) {
  ModelShape shape;
  shape.name = std::move(name);
  shape.layers = 2;
  shape.hidden = 24;
  shape.heads = 4;
  shape.kv_heads = kv_heads;
  shape.ffn = 40;
  shape.vocab = 51;
  shape.swiglu = true;
  shape.biases = biases;
  shape.tied = tied;
  shape.norm_eps = 1e-6;
  shape.context = 64;
  return shape;
}

std::vector<ModelShape> sparse_shapes() {
  std::vector<ModelShape> all;
  all.push_back(small("mixtral", 2, false, false));
  all.back().window = 9;
  all.back().experts = {.count = 3, .per_token = 2, .width = 40};
  all.push_back(small("qwen3-moe", 2, false, false));
  all.back().layers = 3;
  all.back().qk_norm = true;
  all.back().head_width = 8;
  all.back().experts = {.count = 5, .per_token = 1, .width = 7, .normalized = false};
  all.back().experts.dense_layers = 1;
  for (const char* const name : {"dots1", "dots1-all-sparse"}) {
    ModelShape& dots = all.emplace_back(small(name, 4, false, true));
    dots.qk_norm = true;
    dots.experts = {.count = 4, .per_token = 3, .width = 9, .shared_width = 18};
    dots.experts.scores = RouterScores::sigmoid;
    dots.experts.scale = 2.5;
    dots.experts.selection_bias = true;
    if (std::string(name) != "dots1") continue;
    dots.biases = Biases(true, true, false, false);
    dots.window = 8;
    dots.window_from = 1;
    dots.experts.normalized = false;
    dots.experts.dense_layers = 1;
  }
  return all;
}

// Returns the bytes of a tensor of the folder.
std::string bytes_of_piece(const ParamPieces& param, const Piece& piece, DType dtype) {
  const std::int64_t width = param.shape.size() > 1 ? param.shape[1] : 1;
  const std::int64_t count = piece.rows * width, size = bytes_of(dtype);
  std::string out(static_cast<std::size_t>(count * size), '\0');
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t row = i / width, column = i % width;
    if (piece.transposed) {
      row = i % piece.rows;
      column = i / piece.rows;
    }
    const float value = value_of(param.param, (piece.row + row) * width + column);
    checkpoint::convert(DType::f32, reinterpret_cast<const std::byte*>(&value), dtype,
                        reinterpret_cast<std::byte*>(out.data()) + i * size, 1,
                        checkpoint::Rounding::exact);
  }
  return out;
}

}  // namespace

std::vector<ModelShape> small_shapes() {
  std::vector<ModelShape> all;
  for (const char* const name : {"gpt2", "gpt2-untied"}) {
    ModelShape& gpt = all.emplace_back(small(name, 4, true, std::string(name) == "gpt2"));
    gpt.swiglu = false;
    gpt.positions = 32;
    gpt.context = 0;
    gpt.norm_eps = 1e-5;
    gpt.ffn = 96;
  }
  ModelShape& llama = all.emplace_back(small("llama", 2, false, false));
  llama.rotary_base = 5e5;
  llama.rotary_scaling = {RotaryScaling::Kind::llama3, 8, 1, 4, 16};
  all.push_back(small("llama-biases", 1, Biases(true, true, true, false), false));
  all.back().head_width = 8;
  all.push_back(small("llama-tied", 4, false, true));
  all.back().rotary_scaling = {RotaryScaling::Kind::linear, 2.5, 1, 4, 8192};
  all.push_back(small("qwen2", 2, Biases(true, false, false, false), true));
  all.push_back(small("qwen2-window", 2, Biases(true, false, false, false), false));
  all.back().window = 8;
  all.back().window_from = 1;
  all.push_back(small("mistral", 2, false, false));
  all.back().window = 8;
  all.push_back(small("llama-dynamic", 2, false, false));
  all.back().rotary_scaling = {RotaryScaling::Kind::dynamic, 2.5};
  all.push_back(small("qwen3", 2, false, true));
  all.back().family = Family::qwen3;
  all.back().qk_norm = true;
  all.back().head_width = 8;
  all.push_back(small("phi3", 4, false, false));
  all.back().family = Family::phi3;
  all.back().window = 9;
  for (const Family family : {Family::gemma2, Family::gemma3}) {
    ModelShape& gemma = all.emplace_back(small(family == Family::gemma2 ? "gemma2" : "gemma3",
                                               family == Family::gemma2 ? 2 : 1, false, true));
    gemma.family = family;
    gemma.head_width = 8;
    gemma.gate = Activation::gelu_tanh;
    gemma.norm_plus_one = gemma.post_norms = true;
    gemma.embedding_scale = std::sqrt(24.0);
    gemma.window = 8;
    gemma.window_period = 2;
    gemma.attention_scale = 1 / std::sqrt(20.0);
    if (family == Family::gemma2) {
      gemma.attention_cap = 50;
      gemma.logit_cap = 30;
    } else {
      gemma.qk_norm = true;
      gemma.rotary_base = 1e6;
      gemma.rotary_scaling = {RotaryScaling::Kind::linear, 8};
      gemma.window_rotary_base = 1e4;
    }
  }
  for (const bool more : {false, true}) {
    all.push_back(
        small(more ? "qwen2-yarn-all" : "qwen2-yarn", 2, Biases(true, false, false, false), false));
    RotaryScaling& yarn = all.back().rotary_scaling;
    yarn = {RotaryScaling::Kind::yarn, 4, 1, 4, 32};
    if (!more) continue;
    yarn.beta_fast = 20;
    yarn.beta_slow = 2;
    yarn.truncate = false;
    yarn.attention_factor = 1.5;
    yarn.mscale = 0.75;
    yarn.mscale_all_dim = 1.25;
  }
  for (ModelShape& shape : sparse_shapes()) all.push_back(std::move(shape));
  for (ModelShape& shape : all) shape.family = family_of(shape);
  return all;
}

ModelShape small_shape(const std::string& name) {
  for (ModelShape& shape : small_shapes()) {
    if (shape.name == name) return shape;
  }
  throw std::logic_error(name);
}

float value_of(const std::string& param, std::int64_t i) {
  std::uint64_t bits = std::hash<std::string>()(param) + static_cast<std::uint64_t>(i);
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int>(bits >> 40) % 256 - 128) / 64;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::int64_t buffer_elements(const ModelShape& shape) {
  return shape.experts.selection_bias ? shape.expert_layers() * shape.experts.count : 0;
}

void make_folder(const std::string& path, const ModelShape& shape, const MadeOptions& options) {
  std::filesystem::create_directories(path);
  const auto files = checkpoint::local_files();
  files->remove(path + "/" + kConfigName);
  checkpoint::write_text(*files, path + "/" + kConfigName, config_json(shape, "float32"));
  std::vector<checkpoint::TensorEntry> entries;
  std::map<std::string, std::string> bytes;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& sizes,
                       std::string data, DType dtype) {
    if (bytes.contains(name)) {  // the next expert of a stack
      bytes[name] += data;
      return;
    }
    checkpoint::TensorEntry& entry = entries.emplace_back();
    entry.name = name;
    entry.shape = sizes;
    entry.dtype = dtype;
    bytes[name] = std::move(data);
  };
  const std::string prefix = prefix_of(shape);
  for (const ParamPieces& param :
       pieces_of(shape, options.stacked ? ExpertTensors::stacked : ExpertTensors::separate)) {
    const DType dtype = is_model_buffer(param.param) ? DType::f32 : options.dtype;
    for (const Piece& piece : param.pieces) {
      std::string name = piece.tensor;
      if (!options.prefix && name.starts_with(prefix)) name.erase(0, prefix.size());
      add(name, piece.shape, bytes_of_piece(param, piece, dtype), dtype);
    }
  }
  if (options.buffers) {
    const std::string name = shape.rotary() ? "model.layers.0.self_attn.rotary_emb.inv_freq"
                                            : "transformer.h.0.attn.bias";
    add(name, {4}, std::string(as_size(4 * bytes_of(options.dtype)), 'x'), options.dtype);
  }
  if (options.head_copy) {
    const std::string embedding = entries.front().name;
    add("lm_head.weight", {shape.vocab, shape.hidden}, bytes.at(embedding), options.dtype);
  }
  if (options.entries) options.entries(entries);
  nlohmann::json index;
  const auto count = static_cast<std::size_t>(options.files);
  for (std::size_t f = 0; f < count; ++f) {
    std::vector<checkpoint::Outgoing> tensors;
    const std::string name =
        count == 1 ? std::string(kModelName) : str("model-", f + 1, "-of-", count, ".safetensors");
    for (std::size_t i = f; i < entries.size(); i += count) {
      checkpoint::Outgoing& out = tensors.emplace_back();
      out.entry = entries[i];
      std::string& data = bytes[entries[i].name];
      data.resize(as_size(elements(entries[i].shape) * bytes_of(entries[i].dtype)));
      out.source = [&data](std::int64_t offset, std::int64_t, std::byte*) {
        return reinterpret_cast<const std::byte*>(data.data()) + offset;
      };
      index["weight_map"][entries[i].name] = name;
    }
    files->remove(path + "/" + name);
    checkpoint::write_safetensors(*files, path + "/" + name, tensors, {{"format", "pt"}});
  }
  if (count > 1) checkpoint::write_text(*files, path + "/" + kIndexName, index.dump());
}

std::string make_checkpoint(const std::string& dir, const ModelShape& shape) {
  checkpoint::Description about;
  about.step = 7;
  about.model = shape_json(shape);
  about.layout = "fp32";
  about.extra["updates"] = "7";
  std::vector<std::vector<float>> memory;
  std::vector<checkpoint::Shard> shards;
  const std::vector<ParamPieces> params = pieces_of(shape);
  for (const ParamPieces& param : params) {
    ParamSpec& spec = about.params.emplace_back();
    spec.name = param.param;
    spec.shape = param.shape;
    const std::int64_t count = elements(param.shape);
    for (const char* const state : {state_of(param.param), "moment1"}) {
      if (state[0] == 'm' && is_model_buffer(param.param)) continue;
      std::vector<float>& values = memory.emplace_back(as_size(count));
      for (std::int64_t i = 0; i < count; ++i) {
        values[as_size(i)] = value_of(param.param, i) + (state[0] == 'm' ? 1 : 0);
      }
      checkpoint::Shard& shard = shards.emplace_back();
      shard.param = param.param;
      shard.state = state;
      shard.runs = {{0, 0, count}};
      shard.data = reinterpret_cast<const std::byte*>(values.data());
    }
  }
  return checkpoint::save(dir, about, shards).folder;
}

}  // namespace tessera::huggingface
