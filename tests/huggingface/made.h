#pragma once

// Models whose every element is known, as folders of Hugging Face's and as checkpoints.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/core/model_shape.h"
#include "tessera/huggingface/tensors.h"

namespace tessera::huggingface {

// Small models of each family, with what is particular to them. By name: gpt2, gpt2-untied, llama,
// llama-biases, llama-tied, qwen2, qwen2-window, mistral, llama-dynamic, qwen2-yarn,
// qwen2-yarn-all.
std::vector<ModelShape> small_shapes();
ModelShape small_shape(const std::string& name);

// Element i of a parameter: a number that bf16 and f16 have.
float value_of(const std::string& param, std::int64_t i);
std::int64_t elements(const std::vector<std::int64_t>& shape);

struct MadeOptions {
  DType dtype = DType::f32;
  int files = 1;           // more: an index
  bool prefix = true;      // names begin with "model." or "transformer."
  bool buffers = false;    // those that older files have
  bool head_copy = false;  // the embedding as lm_head.weight too
  // Last, for tests that spoil something.
  std::function<void(std::vector<checkpoint::TensorEntry>&)> entries = {};
};
// config.json and tensors with these values.
void make_folder(const std::string& path, const ModelShape& shape, const MadeOptions& options = {});

// A checkpoint of a run in `dir`, with moments too; its folder.
std::string make_checkpoint(const std::string& dir, const ModelShape& shape);

}  // namespace tessera::huggingface
