#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/fingerprint.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/peft.h"
#include "tessera/huggingface/publish_folder.h"
#include "tessera/huggingface/shape_json.h"

namespace tessera::huggingface {
namespace {

// peft matches modules by the end of their names. GPT-2 has a c_proj in attention and one in the
// MLP.
std::string target_module(const Adapter& adapter) {
  if (adapter.peft.ends_with("c_proj")) return adapter.peft;
  return adapter.peft.substr(adapter.peft.find('.') + 1);
}

std::string adapter_config(const ModelShape& shape, const std::string& base) {
  nlohmann::ordered_json json;
  const Lora& lora = shape.lora;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = base;
  json["inference_mode"] = true;
  json["r"] = lora.rank;
  if (lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15) {
    json["lora_alpha"] = static_cast<std::int64_t>(lora.alpha);
  } else {
    json["lora_alpha"] = lora.alpha;
  }
  json["lora_dropout"] = lora.dropout;
  json["bias"] = "none";
  json["fan_in_fan_out"] = family_of(shape) == Family::gpt2;
  json["init_lora_weights"] = true;
  json["use_rslora"] = false;
  json["use_dora"] = false;
  json["modules_to_save"] = nullptr;
  json["rank_pattern"] = nlohmann::ordered_json::object();
  json["alpha_pattern"] = nlohmann::ordered_json::object();
  json["target_modules"] = nlohmann::ordered_json::array();
  for (const Adapter& adapter : adapters_of(shape)) {
    json["target_modules"].push_back(target_module(adapter));
  }
  return json.dump(2) + "\n";
}

std::vector<checkpoint::Outgoing> outgoing_adapters(checkpoint::Checkpoint& from,
                                                    const ModelShape& shape, DType dtype) {
  std::vector<checkpoint::Outgoing> tensors;
  const auto add = [&](const ParamSpec& spec, const std::string& name) {
    const ParamSpec* const there = from.find(spec.name);
    if (there == nullptr || there->shape != spec.shape) {
      throw DataError(str(from.folder(), " has no parameter ", quote(spec.name),
                          " of the shape that its model requires"));
    }
    checkpoint::Outgoing& out = tensors.emplace_back();
    out.entry.name = name;
    out.entry.dtype = dtype;
    out.entry.shape = spec.shape;
    out.source = [&from, param = spec.name, dtype](std::int64_t offset, std::int64_t bytes,
                                                   std::byte* staging) {
      const std::int64_t size = checkpoint::bytes_of(dtype);
      from.load({{param, "param", dtype, {{offset / size, 0, bytes / size}}, staging, {}}},
                checkpoint::Rounding::nearest);
      return static_cast<const std::byte*>(staging);
    };
  };
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const Adapter& adapter : adapters_of(shape)) {
      const AdapterSpecs specs = specs_of(adapter, shape.lora.rank, str("blocks.", layer));
      add(specs.a, peft_name(shape, adapter, layer, 'A'));
      add(specs.b, peft_name(shape, adapter, layer, 'B'));
    }
  }
  return tensors;
}

}  // namespace

WrittenAdapter export_adapter(checkpoint::Checkpoint& from, const std::string& path,
                              const AdapterOptions& options) {
  std::string target = path;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  const std::string kind = kind_of_file(target);
  if (kind != "nothing" && (kind != "a folder" || !options.files->list(target).empty())) {
    throw UsageError(str(target, " exists already (", kind, "); must be the name of a new folder"));
  }
  const ModelShape shape = parse_shape(from.about().model, from.folder());
  if (!shape.lora.any()) {
    throw UsageError(str(from.folder(),
                         " has no adapters: it was not saved by tessera train --lora-rank; "
                         "use --format huggingface for whole models"));
  }
  family_of(shape);
  std::vector<checkpoint::Outgoing> tensors = outgoing_adapters(from, shape, options.dtype);
  checkpoint::FileSystem& files = *options.files;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const auto& texts = from.about().extra;
  if (const auto base = texts.find(kFrozenKey); base != texts.end()) {
    metadata[kAdapterBase] = base->second;
  }
  WrittenAdapter written;
  publish_folder(files, target, [&](const std::string& draft) {
    checkpoint::write_safetensors(files, draft + "/" + kAdapterModelName, tensors, metadata);
    checkpoint::write_text(files, draft + "/" + kAdapterConfigName,
                           adapter_config(shape, options.base));
  });
  for (const checkpoint::Outgoing& tensor : tensors) {
    ++written.tensors;
    written.bytes +=
        checkpoint::elements_of(tensor.entry.shape) * checkpoint::bytes_of(options.dtype);
  }
  return written;
}

}  // namespace tessera::huggingface
