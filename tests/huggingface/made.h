#pragma once

// Generated models with known values, as Hugging Face folders and as checkpoints.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/core/model_shape.h"
#include "tessera/huggingface/param_pieces.h"

namespace tessera::huggingface {

// Small models of each family, covering their special features. By name: gpt2, gpt2-untied, llama,
// llama-biases, llama-tied, qwen2, qwen2-window, mistral, llama-dynamic, qwen2-yarn,
// qwen2-yarn-all, mixtral, qwen3-moe, dots1, dots1-all-sparse.
std::vector<ModelShape> small_shapes();
ModelShape small_shape(const std::string& name);

// Returns element i of a parameter: a number that bf16 and f16 represent exactly.
float value_of(const std::string& param, std::int64_t i);
std::int64_t elements(const std::vector<std::int64_t>& shape);
// Returns the number of elements of the buffers of a model.
std::int64_t buffer_elements(const ModelShape& shape);

// Options of make_folder().
struct MadeOptions {
  DType dtype = DType::f32;
  int files = 1;           // more than 1 adds an index
  bool prefix = true;      // names begin with "model." or "transformer."
  bool buffers = false;    // adds the buffers of older files
  bool head_copy = false;  // adds the embedding as lm_head.weight
  bool stacked = false;    // experts of a layer in one tensor
  // Called last, for tests that corrupt the header.
  std::function<void(std::vector<checkpoint::TensorEntry>&)> entries = {};
};
// Writes config.json and tensors with these values.
void make_folder(const std::string& path, const ModelShape& shape, const MadeOptions& options = {});

// Writes a checkpoint with moments into `dir` and returns its folder.
std::string make_checkpoint(const std::string& dir, const ModelShape& shape);

}  // namespace tessera::huggingface
