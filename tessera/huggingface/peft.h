#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/lora.h"
#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

// [Note: PEFT] Adapters as the Python package peft has them: a folder with adapter_config.json and
// adapter_model.safetensors, whose tensors are called as the linear in the Hugging Face model,
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" [rank, in] and …lora_B.weight
// [out, rank]. They are those of ours as they are; of GPT-2 too, whose own matrices lie transposed
// (fan_in_fan_out), and whose c_attn has one adapter.
inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterModelName = "adapter_model.safetensors";
// Where a folder of ours has the fingerprint of the model that its adapters were trained beside: a
// text among the metadata of that file, which peft leaves alone.
inline constexpr const char* kAdapterBase = "tessera_base";

// What an adapter_config.json says of adapters, without their targets: those are what the file with
// the tensors has. A field that changes what adapters compute is honoured (use_rslora too) or
// refused by its name; so is one that is not known, unless it switches nothing on. `where` names
// the text in errors. Throws DataError.
Lora parse_adapter_config(std::string_view json, const std::string& where);

// Adapters of a folder for a model. All are in memory: they are small.
class AdapterFolder {
 public:
  // Throws DataError unless the folder has adapters of this model, the same ones in every block,
  // and nothing else: then all that is missing, extra or of another shape or type is listed.
  AdapterFolder(const std::string& path, const ModelShape& shape);

  const std::string& path() const { return path_; }
  const Lora& lora() const { return lora_; }  // with the targets' names in our words
  bool has(const std::string& param) const { return values_.contains(param); }
  // The model they were trained beside, as far as the folder says: base_model_name_or_path, and a
  // fingerprint for check_base(). Both may be "".
  const std::string& base() const { return base_; }
  const std::string& base_fingerprint() const { return fingerprint_; }
  // Puts elements of a parameter of ours ("blocks.0.qkv.lora_q.A") behind `into`.
  void read(const std::string& param, const std::vector<Run>& runs, float* into) const;

 private:
  std::string path_, base_, fingerprint_;
  Lora lora_;
  std::map<std::string, std::vector<float>> values_;
};

// Returns the model that the adapter_config.json of a folder names, or "". Throws DataError.
std::string base_model_of(const std::string& folder);

struct AdapterOptions {
  std::string base;  // base_model_name_or_path, for people and for peft
  DType dtype = DType::f32;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::local_files();
};
struct WrittenAdapter {
  std::int64_t bytes = 0;  // of tensors
  std::int64_t tensors = 0;
};
// Writes such a folder from a checkpoint of `tessera train --lora-rank`. `path` appears when all of
// it is written, and must not be there before, or be an empty folder. Throws UsageError for a
// checkpoint without adapters, or of a model that no family has.
WrittenAdapter export_adapter(checkpoint::Checkpoint& from, const std::string& path,
                              const AdapterOptions& options = {});

// The tensor that is parameter `matrix` ("A") of an adapter in block `layer`.
std::string peft_name(const ModelShape& shape, const Adapter& adapter, std::int64_t layer,
                      char matrix);

}  // namespace tessera::huggingface
