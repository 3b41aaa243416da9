#include "tessera/train/model_files.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/fingerprint.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/merge.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/param_pieces.h"
#include "tessera/huggingface/peft.h"
#include "tessera/train/resuming.h"

namespace tessera::train {
namespace {

DType dtype_of(const at::Tensor& into) {
  if (!into.device().is_cpu() || !into.is_contiguous() ||
      (into.scalar_type() != at::kFloat && into.scalar_type() != at::kBFloat16)) {
    throw UsageError(
        "a parameter must be read into a contiguous float or bfloat16 tensor on the CPU");
  }
  return into.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
}

// fp16 has more digits than bf16, and fp32 holds all of them.
at::ScalarType type_for(DType stored) { return stored == DType::bf16 ? at::kBFloat16 : at::kFloat; }

[[noreturn]] void refuse_base(const std::string& base, const std::string& folder) {
  throw UsageError(Flag("base"), str("got ", quote(base), ", but ", folder,
                                     " is a whole model, without adapters. Omit it."));
}

void check_shape(const ParamSpec& spec, const at::Tensor& into, const Axes& axes,
                 const Coordinate& coordinate) {
  const std::vector<std::int64_t> wanted = local_shape(spec, axes, coordinate);
  if (into.sizes() == at::IntArrayRef(wanted)) return;
  throw UsageError(tessera::str("parameter ", quote(spec.name), " is read into ", into.sizes(),
                                "; the shape must be ", at::IntArrayRef(wanted)));
}

class CheckpointFiles final : public ModelFiles {
 public:
  CheckpointFiles(const std::string& folder, const std::string& base) : from_(folder) {
    from_.check_files();
    const checkpoint::Description& about = from_.about();
    folder_ = folder;
    shape_ = parse_shape_json(about.model, folder);
    about_ = str("step ", about.step);
    const auto extra = [&](const char* key) {
      const auto found = about.extra.find(key);
      return found == about.extra.end() ? std::string() : found->second;
    };
    data_ = extra("data").empty() ? "unknown" : extra("data");
    tokenizer_ = extra("tokenizer");
    seq_ = std::atoll(extra("seq").c_str());
    tokenizer_folder_ = huggingface::companions_of(folder);
    if (shape_.lora.any()) {
      add_adapters_to(base.empty() ? extra("init_from") : base, base.empty() ? "--from" : "--base");
      return;
    }
    if (!base.empty()) refuse_base(base, folder);
    const auto states = from_.states("tok.weight");
    const auto state = states.find("param");
    if (state != states.end()) type_ = type_for(state->second);
  }

  void read(const ParamSpec& spec, const at::Tensor& into, const Axes& axes,
            const Coordinate& coordinate) override {
    check_shape(spec, into, axes, coordinate);
    if (merged_) {
      dtype_of(into);
      const at::Tensor wide = at::empty(into.sizes(), at::kFloat).zero_();
      merged_->read(spec.name, local_runs(spec, axes, coordinate), wide.mutable_data_ptr<float>());
      into.copy_(wide);
      return;
    }
    from_.expect({spec});
    checkpoint::WantedShard wanted;
    wanted.param = spec.name;
    wanted.state = huggingface::state_of(spec.name);
    wanted.dtype = dtype_of(into);
    wanted.runs = local_runs(spec, axes, coordinate);
    wanted.into = static_cast<std::byte*>(into.data_ptr());
    if (checkpoint::count_of(wanted.runs) < into.numel()) into.zero_();
    from_.load({wanted}, checkpoint::Rounding::nearest);
  }

 private:
  // A checkpoint of a run with adapters has only the adapters. They are merged into their base
  // model, and the result is read as a model without adapters: [Note: merged adapters].
  void add_adapters_to(const std::string& base, const std::string& flag) {
    if (base.empty()) {
      throw UsageError(Flag("from"),
                       str(folder_,
                           " has only adapters, and their base model was not started from files "
                           "(--init-from). Name it with --base."));
    }
    if (kind_of_file(base) != "a folder") {
      throw UsageError(str(flag, ": the adapters in ", folder_, " are for the model in ",
                           visible(base, 1000), ", which is ",
                           kind_of_file(base) == "nothing" ? "missing" : kind_of_file(base),
                           ". Name the folder of that model with --base."));
    }
    const auto& texts = from_.about().extra;
    if (const auto fingerprint = texts.find(kFrozenKey); fingerprint != texts.end()) {
      huggingface::check_base(base, shape_, fingerprint->second, flag);
    }
    merged_.emplace(
        shape_, huggingface::open_base(base, shape_),
        [this](const std::string& param, const std::vector<Run>& runs, float* into) {
          from_.load({{param, "param", DType::f32, runs, reinterpret_cast<std::byte*>(into), {}}});
        });
    about_ += str(", adapters added to ", base);
    shape_.lora = {};
  }

  checkpoint::Checkpoint from_;
  std::optional<huggingface::MergedModel> merged_;
};

class HuggingFaceFiles final : public ModelFiles {
 public:
  explicit HuggingFaceFiles(const std::string& folder) : from_(folder) {
    folder_ = tokenizer_folder_ = folder;
    notes_ = from_.notes();
    shape_ = from_.shape();
    about_ = name(from_.config().shape.family);
    type_ = type_for(from_.dtype());
    // Both may name end tokens; generation_config.json takes precedence.
    for (const char* name : {"generation_config.json", "config.json"}) {
      const std::string path = folder + "/" + name;
      if (kind_of_file(path) != "a regular file") continue;
      const auto json = nlohmann::json::parse(read_small_file(path, 1 << 24), nullptr,
                                              /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("eos_token_id")) continue;
      const nlohmann::json& ends = json["eos_token_id"];
      for (const nlohmann::json& end : ends.is_array() ? ends : nlohmann::json::array({ends})) {
        if (end.is_number_integer()) end_tokens_.push_back(end.get<std::int64_t>());
      }
      if (!end_tokens_.empty()) break;
    }
  }

  void read(const ParamSpec& spec, const at::Tensor& into, const Axes& axes,
            const Coordinate& coordinate) override {
    check_shape(spec, into, axes, coordinate);
    const std::vector<Run> runs = local_runs(spec, axes, coordinate);
    if (checkpoint::count_of(runs) < into.numel()) into.zero_();
    from_.read(spec.name, runs, dtype_of(into), static_cast<std::byte*>(into.data_ptr()));
  }

 private:
  huggingface::Folder from_;
};

// Adapters in the format of peft, merged into their base model: [Note: merged adapters].
class AdapterFiles final : public ModelFiles {
 public:
  AdapterFiles(const std::string& folder, const std::string& base_folder,
               std::unique_ptr<ModelFiles> base)
      : base_(std::move(base)), adapters_(folder, base_->shape()) {
    const ModelShape& plain = base_->shape();
    huggingface::check_base(base_folder, plain, adapters_.base_fingerprint(), "--base");
    ModelShape adapted = plain;
    adapted.lora = adapters_.lora();
    merged_.emplace(adapted, huggingface::open_base(base_folder, plain),
                    [this](const std::string& param, const std::vector<Run>& runs, float* into) {
                      adapters_.read(param, runs, into);
                    });
    shape_ = plain;
    folder_ = folder;
    about_ = str("adapters of ", folder, " added to ", base_folder);
    data_ = base_->data();
    type_ = base_->type();
    seq_ = base_->seq();
    tokenizer_ = base_->tokenizer();
    notes_ = base_->notes();
    end_tokens_ = base_->end_tokens();
    const bool own = kind_of_file(folder + "/tokenizer.json") == "a regular file";
    tokenizer_folder_ = own ? folder : base_->tokenizer_folder();
  }

  void read(const ParamSpec& spec, const at::Tensor& into, const Axes& axes,
            const Coordinate& coordinate) override {
    check_shape(spec, into, axes, coordinate);
    dtype_of(into);
    const at::Tensor wide = at::empty(into.sizes(), at::kFloat).zero_();
    merged_->read(spec.name, local_runs(spec, axes, coordinate), wide.mutable_data_ptr<float>());
    into.copy_(wide);
  }

 private:
  std::unique_ptr<ModelFiles> base_;
  huggingface::AdapterFolder adapters_;
  std::optional<huggingface::MergedModel> merged_;
};

// Returns the base model of a PEFT folder: `base`, or the path in its adapter_config.json, relative
// to the working directory or to the folder.
std::string base_of_adapters(const std::string& folder, const std::string& base) {
  if (!base.empty()) return base;
  const std::string named = huggingface::base_model_of(folder);
  for (const std::string& path : {named, folder + "/" + named}) {
    if (!named.empty() && kind_of_file(path) == "a folder") return path;
  }
  throw UsageError(Flag("from"), str(quote(folder), " has only adapters, for ",
                                     named.empty() ? std::string("an unnamed model")
                                                   : "the model " + quote(named),
                                     named.empty() ? "" : ", which is not a folder here",
                                     ". Name the folder of that model with --base."));
}

// Implements open_model(). `adapters`: look for adapters in the format of peft. False for the base
// model of adapters, whose folder may also have an adapter_config.json.
std::unique_ptr<ModelFiles> open_files(const std::string& from, const std::string& base,
                                       bool adapters) {
  const auto refuse = [&](const std::string& is) {
    throw UsageError(str(adapters ? "--from: " : "--base: ", quote(from), " is ", is,
                         "; must be a checkpoint (step-… with a ", checkpoint::kManifestName,
                         "), the folder of a run, ", adapters ? "" : "or ",
                         "a Hugging Face folder with a config.json",
                         adapters ? ", or adapters saved by peft" : ""));
  };
  const std::string kind = kind_of_file(from);
  if (kind != "a folder") refuse(kind == "nothing" ? "missing" : kind);
  if (checkpoint::local_files()->exists(from + "/" + checkpoint::kManifestName)) {
    return std::make_unique<CheckpointFiles>(from, base);
  }
  // Checked before config.json, which a folder of adapters may also have.
  if (adapters && kind_of_file(from + "/" + huggingface::kAdapterConfigName) == "a regular file") {
    const std::string path = base_of_adapters(from, base);
    return std::make_unique<AdapterFiles>(from, path, open_files(path, "", false));
  }
  if (huggingface::has_config(from)) {
    if (!base.empty()) refuse_base(base, from);
    return std::make_unique<HuggingFaceFiles>(from);
  }
  const checkpoint::Latest latest = checkpoint::find_latest(from);
  if (latest.folder.empty()) {
    refuse(latest.skipped.empty()
               ? "a folder without a model"
               : str("a folder without a readable checkpoint: ", join(latest.skipped, "; ")));
  }
  return std::make_unique<CheckpointFiles>(latest.folder, base);
}

}  // namespace

at::ScalarType compute_type(const std::string& dtype, const ModelFiles& files) {
  if (dtype == "auto") return files.type();
  return parse_dtype(dtype, kComputeTypes) == DType::bf16 ? at::kBFloat16 : at::kFloat;
}

std::unique_ptr<ModelFiles> open_model(const std::string& from, const std::string& base) {
  return open_files(from, base, true);
}

}  // namespace tessera::train
