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

// [Note: PEFT] Adapters in the format of the Python package peft: a folder with adapter_config.json
// and adapter_model.safetensors. Tensors are named after the linear in the Hugging Face model:
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" [rank, in] and …lora_B.weight
// [out, rank]. They equal Tessera's adapters without any conversion, also for GPT-2, whose own
// matrices are transposed (fan_in_fan_out) and whose c_attn has one adapter.
inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterModelName = "adapter_model.safetensors";
// Metadata key of that file for the fingerprint of the base model. peft ignores it.
inline constexpr const char* kAdapterBase = "tessera_base";

// Parses an adapter_config.json, except the targets, which follow from the tensor file. Fields that
// change what adapters compute are applied (use_rslora too) or rejected by name; unknown fields are
// rejected unless they are off. `where` names the text in errors. Throws DataError.
Lora parse_adapter_config(std::string_view json, const std::string& where);

// Adapters of a folder, all held in memory since they are small.
class AdapterFolder {
 public:
  // Throws DataError unless the folder has adapters of this model, the same ones in every block,
  // and nothing else. The message lists all that are missing, extra, or of another shape or type.
  AdapterFolder(const std::string& path, const ModelShape& shape);

  const std::string& path() const { return path_; }
  const Lora& lora() const { return lora_; }  // with Tessera's names of the targets
  bool has(const std::string& param) const { return values_.contains(param); }
  // Base model, as far as the folder names it: base_model_name_or_path, and a fingerprint for
  // check_base(). Both may be "".
  const std::string& base() const { return base_; }
  const std::string& base_fingerprint() const { return fingerprint_; }
  // Reads elements of a Tessera parameter ("blocks.0.qkv.lora_q.A") to `into`.
  void read(const std::string& param, const std::vector<Run>& runs, float* into) const;

 private:
  std::string path_, base_, fingerprint_;
  Lora lora_;
  std::map<std::string, std::vector<float>> values_;
};

// Returns the model that the adapter_config.json of a folder names, or "". Throws DataError.
std::string base_model_of(const std::string& folder);

// Options of export_adapter().
struct AdapterOptions {
  std::string base;  // base_model_name_or_path
  DType dtype = DType::f32;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::local_files();
};
// Result of export_adapter().
struct WrittenAdapter {
  std::int64_t bytes = 0;  // of the tensors
  std::int64_t tensors = 0;
};
// Writes such a folder from a checkpoint of `tessera train --lora-rank`. `path` appears atomically
// when it is complete; it must not exist or must be an empty folder. Throws UsageError if the
// checkpoint has no adapters or no family has the model's shape.
WrittenAdapter export_adapter(checkpoint::Checkpoint& from, const std::string& path,
                              const AdapterOptions& options = {});

// Returns the tensor name of `matrix` ('A' or 'B') of an adapter in block `layer`.
std::string peft_name(const ModelShape& shape, const Adapter& adapter, std::int64_t layer,
                      char matrix);

}  // namespace tessera::huggingface
