#include "tessera/huggingface/peft.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/index.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/param_pieces.h"

namespace tessera::huggingface {
namespace {

using AdapterJson = nlohmann::json;

constexpr std::int64_t kMaxAdapterConfig = std::int64_t{4} << 20;
constexpr std::int64_t kMaxAdapterBytes = std::int64_t{1} << 36;
constexpr std::int64_t kMaxAdapterRank = 65536;

// Fields that do not affect what trained adapters compute.
const std::set<std::string, std::less<>>& harmless_adapter_fields() {
  static const std::set<std::string, std::less<>> names = {
      "auto_mapping",   "base_model_name_or_path", "revision",
      "task_type",      "inference_mode",          "peft_version",
      "megatron_core",  "target_modules",          "exclude_modules",
      "fan_in_fan_out", "layers_pattern",          "qalora_group_size",
      "runtime_config", "ephemeral_gpu_offload"};
  return names;
}

// Returns true for null, false, zero and empty values.
bool is_off(const AdapterJson& value) {
  return value.is_null() || value == false || (value.is_number() && value == 0) ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

[[noreturn]] void refuse_field(const std::string& where, const std::string& field,
                               const AdapterJson& value, const std::string& wanted) {
  throw DataError(
      str(where, ": got ", quote(field), ": ", value.dump().substr(0, 80), "; must be ", wanted));
}

// Some initializations change the base weights; their adapters do not fit the unchanged base model.
void check_init(const std::string& where, const AdapterJson& value) {
  if (value.is_boolean() || value.is_null()) return;
  const bool harmless = value == "gaussian" || value == "orthogonal" || value == "eva";
  if (!harmless) {
    refuse_field(where, "init_lora_weights", value,
                 "true, false or gaussian, which leave the base weights unchanged");
  }
}

std::string some_problems(std::vector<std::string> problems) {
  cut_list(problems, 40);
  return join(problems, "; ");
}

std::string dims(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(str(size));
  return "[" + join(sizes, ", ") + "]";
}

// Returns base_model_name_or_path of a text that parse_adapter_config() has accepted.
std::string base_name(const std::string& config) {
  const AdapterJson json = AdapterJson::parse(config);
  const auto base = json.find("base_model_name_or_path");
  return base != json.end() && base->is_string() ? base->get<std::string>() : std::string();
}

}  // namespace

std::string peft_name(const ModelShape& shape, const Adapter& adapter, std::int64_t layer,
                      char matrix) {
  return str("base_model.model.", prefix_of(shape), shape.rotary() ? "layers." : "h.", layer, ".",
             adapter.peft, ".lora_", std::string(1, matrix), ".weight");
}

Lora parse_adapter_config(std::string_view text, const std::string& where) {
  const AdapterJson json = parse_strictly(text, 16, where);
  if (!json.is_object()) throw DataError(str(where, " must be a JSON object"));
  Lora lora;
  bool rslora = false;
  bool kind = false;
  for (const auto& [field, value] : json.items()) {
    if (field == "peft_type") {
      kind = true;
      if (value != "LORA") refuse_field(where, field, value, "LORA");
    } else if (field == "r") {
      if (!value.is_number_integer() || value < 1 || value > kMaxAdapterRank) {
        refuse_field(where, field, value, str("a whole number from 1 to ", kMaxAdapterRank));
      }
      lora.rank = value.get<std::int64_t>();
    } else if (field == "lora_alpha") {
      if (!value.is_number() || !std::isfinite(value.get<double>()) || value <= 0) {
        refuse_field(where, field, value, "a positive number");
      }
      lora.alpha = value.get<double>();
    } else if (field == "lora_dropout") {
      if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() >= 1) {
        refuse_field(where, field, value, "a number of at least 0 and less than 1");
      }
      lora.dropout = value.get<double>();
    } else if (field == "use_rslora") {
      if (!value.is_boolean()) refuse_field(where, field, value, "true or false");
      rslora = value.get<bool>();
    } else if (field == "bias") {
      if (value != "none") refuse_field(where, field, value, "none: Tessera freezes biases");
    } else if (field == "init_lora_weights") {
      check_init(where, value);
    } else if (!harmless_adapter_fields().contains(field) && !is_off(value)) {
      refuse_field(where, field, value, "absent: it may change what adapters compute");
    }
  }
  if (!kind) throw DataError(str(where, ": \"peft_type\" is missing; must be LORA"));
  if (lora.rank == 0) throw DataError(str(where, ": \"r\" is missing, the rank of the adapters"));
  if (!json.contains("lora_alpha")) lora.alpha = 8;  // peft's default
  // alpha / sqrt(rank) instead of alpha / rank.
  if (rslora) lora.alpha *= std::sqrt(static_cast<double>(lora.rank));
  return lora;
}

std::string base_model_of(const std::string& folder) {
  const std::string config = folder + "/" + kAdapterConfigName;
  const std::string text = checkpoint::read_text(
      *checkpoint::local_files(), file_in(folder, kAdapterConfigName), kMaxAdapterConfig);
  parse_adapter_config(text, config);
  return base_name(text);
}

AdapterFolder::AdapterFolder(const std::string& path, const ModelShape& shape) : path_(path) {
  if (kind_of_file(path) != "a folder") {
    throw UsageError(str(quote(path), " is ", kind_of_file(path), "; must be a folder with ",
                         kAdapterConfigName, " and ", kAdapterModelName, ", as peft writes it"));
  }
  const std::string config = path + "/" + kAdapterConfigName;
  if (kind_of_file(config) == "nothing") {
    throw DataError(
        str(path, " has no ", kAdapterConfigName, "; must be a folder written by peft"));
  }
  const auto files = checkpoint::local_files();
  const std::string text =
      checkpoint::read_text(*files, file_in(path, kAdapterConfigName), kMaxAdapterConfig);
  lora_ = parse_adapter_config(text, config);
  base_ = base_name(text);
  const std::string model = file_in(path, kAdapterModelName);
  const auto file = files->open(model);
  const checkpoint::Header header = checkpoint::read_header(*file, model);
  if (const auto own = header.metadata.find(kAdapterBase); own != header.metadata.end()) {
    fingerprint_ = own->second;
  }

  // A target found in any block must be in all of them.
  const auto possible = possible_adapters(shape);
  std::vector<std::string> targets, problems;
  std::set<std::string> known;
  for (const Adapter& adapter : possible) {
    bool any = false;
    for (std::int64_t layer = 0; layer < shape.layers && !any; ++layer) {
      any = header.find(peft_name(shape, adapter, layer, 'A')) != nullptr ||
            header.find(peft_name(shape, adapter, layer, 'B')) != nullptr;
    }
    if (any) targets.push_back(adapter.target);
  }
  const auto take = [&](const std::string& param, const std::string& name,
                        const std::vector<std::int64_t>& wanted) {
    known.insert(name);
    const checkpoint::TensorEntry* const entry = header.find(name);
    if (entry == nullptr) {
      problems.push_back(str("missing ", name, " ", dims(wanted)));
    } else if (entry->shape != wanted) {
      problems.push_back(str(name, " is ", dims(entry->shape), ", must be ", dims(wanted)));
    } else if (!checkpoint::convertible(entry->dtype, DType::f32)) {
      problems.push_back(
          str(name, " is ", checkpoint::stored_name(entry->dtype), ", must be F32, BF16 or F16"));
    } else if (entry->bytes() > kMaxAdapterBytes) {
      problems.push_back(str(name, " is too large"));
    } else {
      std::vector<std::byte> raw(as_size(entry->bytes()));
      file->read(header.data_begin + entry->begin, raw.data(), entry->bytes());
      std::vector<float>& values = values_[param];
      values.resize(as_size(checkpoint::elements_of(wanted)));
      checkpoint::convert(entry->dtype, raw.data(), DType::f32,
                          reinterpret_cast<std::byte*>(values.data()),
                          static_cast<std::int64_t>(values.size()), checkpoint::Rounding::nearest);
    }
  };
  for (const Adapter& adapter : possible) {
    if (std::find(targets.begin(), targets.end(), adapter.target) == targets.end()) continue;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const AdapterSpecs specs = specs_of(adapter, lora_.rank, str("blocks.", layer));
      take(specs.a.name, peft_name(shape, adapter, layer, 'A'), specs.a.shape);
      take(specs.b.name, peft_name(shape, adapter, layer, 'B'), specs.b.shape);
    }
  }
  for (const checkpoint::TensorEntry& entry : header.tensors) {
    if (!known.contains(entry.name)) {
      const bool in_mlp =
          shape.experts.any() && entry.name.find(".self_attn.") == std::string::npos;
      problems.push_back(
          str("extra ", visible(entry.name), " ", dims(entry.shape),
              in_mlp ? " (Tessera adapts the attention of models with experts only)" : ""));
    }
  }
  if (!problems.empty() || targets.empty()) {
    throw DataError(str(model, ": the adapters do not match the model: ",
                        problems.empty() ? "there are none" : some_problems(problems)));
  }
  lora_.targets = join(targets, ",");
}

void AdapterFolder::read(const std::string& param, const std::vector<Run>& runs,
                         float* into) const {
  const std::vector<float>& values = values_.at(param);
  for (const Run& run : runs) {
    std::copy_n(values.begin() + run.whole, run.count, into + run.local);
  }
}

}  // namespace tessera::huggingface
