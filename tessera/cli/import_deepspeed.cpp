// Imports a DeepSpeed config key by key. Notes that depend on one key are in the table; settings,
// and notes that depend on several keys, are here.

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/cli/import.h"
#include "tessera/cli/import_deepspeed_keys.h"
#include "tessera/core/errors.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

using DsValue = nlohmann::json;

constexpr int kMostDepth = 32;

// Returns true if the value switches something on.
bool is_on(const DsValue& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

bool is_auto(const DsValue& value) { return value.is_string() && value == "auto"; }

class DeepSpeedConfig {
 public:
  DeepSpeedConfig(const DsValue& root, Imported& out) : root_(root), out_(out) {}

  const DsValue* raw(const std::string& path) const {
    const DsValue* at = &root_;
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.size(), path.find('.', begin));
      const auto found = at->is_object() ? at->find(path.substr(begin, end - begin)) : at->end();
      if (!at->is_object() || found == at->end()) return nullptr;
      at = &*found;
      begin = end + 1;
    }
    return at;
  }
  // Returns the value, or null if it is absent, null or "auto".
  const DsValue* find(const std::string& path) const {
    const DsValue* const at = raw(path);
    return at == nullptr || at->is_null() || is_auto(*at) ? nullptr : at;
  }
  bool is_open(const std::string& path) const {
    const DsValue* const at = raw(path);
    return at != nullptr && is_auto(*at);
  }
  std::optional<double> number(const std::string& path) const {
    const DsValue* const value = find(path);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse(path, *value, "a number");
    return value->get<double>();
  }
  // Accepts integers in scientific notation, such as 5e8.
  std::optional<std::int64_t> whole(const std::string& path) const {
    const std::optional<double> value = number(path);
    if (!value) return std::nullopt;
    if (!(*value >= 0 && *value <= 1e15) || *value != std::floor(*value)) {
      refuse(path, *find(path), "an integer from 0 to 1000000000000000");
    }
    return static_cast<std::int64_t>(*value);
  }
  std::optional<bool> truth(const std::string& path) const {
    const DsValue* const value = find(path);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse(path, *value, "true or false");
    return value->get<bool>();
  }
  std::string word(const std::string& path) const {
    const DsValue* const value = find(path);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(path, *value, "a string");
    return value->get<std::string>();
  }
  void take_number(const std::string& path, const char* setting, double otherwise) {
    const std::optional<double> value = number(path);
    if (is_open(path)) return;
    out_.set(setting, value.value_or(otherwise), value ? path : path + ", DeepSpeed's default");
  }
  [[noreturn]] static void refuse(const std::string& path, const DsValue& value,
                                  const char* allowed) {
    throw UsageError(str(path, ": got ",
                         quote(value.dump(-1, ' ', true, DsValue::error_handler_t::replace)),
                         "; must be ", allowed));
  }

 private:
  const DsValue& root_;
  Imported& out_;
};

const DeepSpeedKey* find_deepspeed_key(const std::string& path) {
  for (const DeepSpeedKey& key : kDeepSpeedKeys) {
    if (path == key.path) return &key;
  }
  return nullptr;
}

// Returns the key names at this level, for suggestions.
std::vector<std::string> deepspeed_names(const std::string& prefix) {
  std::vector<std::string> names;
  for (const DeepSpeedKey& key : kDeepSpeedKeys) {
    const std::string_view path = key.path;
    if (!path.starts_with(prefix)) continue;
    const std::string_view rest = path.substr(prefix.size());
    names.emplace_back(rest.substr(0, rest.find('.')));
  }
  return names;
}

// Escapes a key from a user's file, which may contain control characters.
std::string printable_key(const std::string& key) {
  const std::string quoted = quote(key);
  return quoted.substr(1, quoted.size() - 2);
}

// Adds a note for each key that does not simply become a setting. `around` is the table row of the
// enclosing object, if it has one.
void note_keys(const DsValue& object, const std::string& prefix, const DeepSpeedKey* around,
               Imported& out) {
  for (const auto& [key, value] : object.items()) {
    const std::string path = prefix + key;
    const DeepSpeedKey* row = find_deepspeed_key(path);
    const std::vector<std::string> inner = deepspeed_names(path + ".");
    if (row == nullptr && inner.empty() && around == nullptr) {
      out.note(prefix + printable_key(key), Fate::unknown,
               "not a known key of DeepSpeed" + did_you_mean(key, deepspeed_names(prefix)));
    } else if (is_auto(value)) {
      out.note(path, Fate::open, "\"auto\": not set, so Tessera's default applies");
    } else if (value.is_object() && !inner.empty()) {
      note_keys(value, path + ".", row, out);
    } else if (row == nullptr && around == nullptr) {
      DeepSpeedConfig::refuse(path, value, "an object");
    } else {
      const DeepSpeedKey& rule = row != nullptr ? *row : *around;
      if (rule.fate == Fate::changed && *rule.text == '\0') continue;
      bool on = is_on(value);
      if (value.is_object() && value.contains("enabled")) on = is_on(value["enabled"]);
      if (value.is_object() && value.contains("device")) on = value["device"] != "none";
      const std::string name = row != nullptr ? path : prefix + printable_key(key);
      out.note(name, on ? rule.fate : Fate::not_needed,
               on || rule.fate == Fate::not_needed ? rule.text : "switched off");
    }
  }
}

// MiCS shards over groups of ranks, each of which holds all state. `dp` is 0 if unknown.
void take_mics(DeepSpeedConfig& config, Imported& out, std::int64_t dp) {
  const std::string key = "zero_optimization.mics_shard_size";
  if (config.number(key).value_or(-1) < 1) return;  // -1 switches it off
  const std::int64_t shards = *config.whole(key);
  if (dp == 0) {
    out.note(key, Fate::open,
             str("give --ranks, or --dp and --dp-replicate, the number of groups of ", shards));
  } else if (dp % shards != 0) {
    throw UsageError(str(key, ": got ", shards, "; must divide the ", dp, " data-parallel ranks"));
  } else {
    out.set("dp-replicate", str(dp / shards), key);
  }
}

void take_zero(DeepSpeedConfig& config, Imported& out) {
  const std::string zero = "zero_optimization.";
  if (const auto stage = config.whole(zero + "stage")) {
    out.set("zero", str(*stage), zero + "stage");
  }
  if (const auto overlap = config.truth(zero + "overlap_comm")) {
    out.set("overlap-grad-reduce", *overlap ? "true" : "false", zero + "overlap_comm");
  }
  if (const auto ahead = config.whole(zero + "stage3_prefetch_bucket_size")) {
    out.set("prefetch", *ahead > 0 ? "true" : "false", zero + "stage3_prefetch_bucket_size");
    if (*ahead > 0) {
      out.note(zero + "stage3_prefetch_bucket_size", Fate::changed,
               "one unit is gathered ahead, independent of its size");
    }
  }
}

// Imports the types. Bucket sizes are in elements, so their bytes depend on the types.
void take_types(DeepSpeedConfig& config, Imported& out) {
  const std::string bf16 = config.find("bfloat16") != nullptr ? "bfloat16.enabled" : "bf16.enabled";
  const bool brain = config.truth(bf16).value_or(false);
  const bool half = config.truth("fp16.enabled").value_or(false);
  if (brain && half) throw UsageError("bf16.enabled and fp16.enabled: got both; use only one");
  std::string gradients = config.word("data_types.grad_accum_dtype");
  if (gradients == "float32") gradients = "fp32";
  if (!gradients.empty() && gradients != "fp32" && gradients != "fp16" && gradients != "bf16") {
    throw UsageError(
        str("data_types.grad_accum_dtype: got ", quote(gradients), "; must be fp32, fp16 or bf16"));
  }
  const bool wide = gradients == "fp32";
  if (brain) {
    out.set("layout", wide ? "bf16-fp32grad" : "bf16", wide ? "data_types.grad_accum_dtype" : bf16);
  } else if (half) {
    out.set("layout", "fp16", "fp16.enabled");
    if (wide) out.note("data_types.grad_accum_dtype", Fate::missing, "fp16 has fp16 gradients");
  } else {
    out.set("layout", "fp32", "neither bf16 nor fp16 is enabled");
  }
  if (const auto elements = config.whole("zero_optimization.reduce_bucket_size")) {
    const std::int64_t bytes = (brain || half) && !wide ? 2 : 4;
    out.set("bucket-size", str(std::min(kLargestBucket, *elements) * bytes),
            "zero_optimization.reduce_bucket_size");
  }
}

void take_optimizer(DeepSpeedConfig& config, Imported& out) {
  const std::string type = config.word("optimizer.type");
  if (type.empty()) {
    out.note("optimizer", Fate::open, "not set: the program created it; give --optimizer, --lr");
    return;
  }
  std::string lowered = type;
  std::transform(lowered.begin(), lowered.end(), lowered.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string params = "optimizer.params.";
  if (lowered == "adam" || lowered == "adamw") {
    out.set("optimizer", "adamw", "optimizer.type");
    if (lowered == "adam" && !config.truth(params + "adam_w_mode").value_or(true) &&
        config.number(params + "weight_decay").value_or(0) > 0) {
      out.note(
          params + "weight_decay", Fate::changed,
          "adam_w_mode is off: DeepSpeed adds the decay to the gradient, Tessera decouples it");
    }
  } else if (lowered == "sgd" || lowered == "lion" || lowered == "muon") {
    out.set("optimizer", lowered, "optimizer.type");
  } else {
    out.note("optimizer.type", Fate::missing,
             str(quote(type), ": must be Adam, AdamW, SGD, Lion or Muon; AdamW is used"));
    out.set("optimizer", "adamw", "optimizer.type has no counterpart");
  }
  config.take_number(params + "lr", "lr", 1e-3);
  config.take_number(params + "weight_decay", "weight-decay", 0);
  if (lowered == "sgd") {
    config.take_number(params + "momentum", "momentum", 0);
    return;
  }
  config.take_number(params + "eps", "eps", 1e-8);
  const DsValue* const betas = config.find(params + "betas");
  if (config.is_open(params + "betas")) return;
  if (betas == nullptr) {
    out.set("beta1", "0.9", "optimizer.params.betas, DeepSpeed's default");
    out.set("beta2", lowered == "lion" ? "0.99" : "0.999",
            "optimizer.params.betas, DeepSpeed's default");
    return;
  }
  if (!betas->is_array() || betas->size() != 2 || !(*betas)[0].is_number() ||
      !(*betas)[1].is_number()) {
    DeepSpeedConfig::refuse(params + "betas", *betas, "two numbers");
  }
  out.set("beta1", (*betas)[0].dump(), params + "betas");
  out.set("beta2", (*betas)[1].dump(), params + "betas");
}

void take_scheduler(DeepSpeedConfig& config, Imported& out) {
  const std::string type = config.word("scheduler.type"), params = "scheduler.params.";
  if (type.empty()) {
    out.set("lr-schedule", "constant", "no scheduler");
    out.set("warmup", "0", "no scheduler");
    return;
  }
  if (type == "WarmupLR") {
    out.set("lr-schedule", "constant", "scheduler.type");
  } else if (type == "WarmupDecayLR") {
    out.set("lr-schedule", "linear", "scheduler.type");
    out.set("min-lr-ratio", "0", "scheduler.type");
  } else if (type == "WarmupCosineLR") {
    out.set("lr-schedule", "cosine", "scheduler.type");
    config.take_number(params + "cos_min_ratio", "min-lr-ratio", 1e-4);
  } else {
    out.note(
        "scheduler.type", Fate::missing,
        str(quote(type), ": must be WarmupLR, WarmupDecayLR or WarmupCosineLR; a constant rate ",
            "is used"));
    out.set("lr-schedule", "constant", "scheduler.type has no counterpart");
    return;
  }
  if (const auto highest = config.number(params + "warmup_max_lr")) {
    out.set("lr", *highest, params + "warmup_max_lr");
  }
  const std::string rising = params + "warmup_num_steps";
  if (const auto steps = config.whole(rising)) {
    out.set("warmup", str(*steps), rising);
  } else if (!config.is_open(rising)) {
    out.set("warmup", "1000", rising + ", DeepSpeed's default");
  }
  if (config.word(params + "warmup_type") != "linear" && type != "WarmupCosineLR") {
    out.note(params + "warmup_type", Fate::changed,
             "log is DeepSpeed's default; here the rate rises linearly");
  }
  if (const auto steps = config.whole(params + "total_num_steps")) {
    out.set("steps", str(*steps), params + "total_num_steps");
  }
}

void take_mesh(DeepSpeedConfig& config, Imported& out, int ranks) {
  std::int64_t tp = 1, pp = 1;
  for (const char* key : {"tensor_parallel.autotp_size", "tensor_parallel.tp_size"}) {
    if (const auto size = config.whole(key); size && *size > 0) {
      tp = *size;
      out.set("tp", str(tp), key);
    }
  }
  if (const auto stages = config.whole("pipeline.stages"); stages && *stages > 0) {
    pp = *stages;
    out.set("pp", str(pp), "pipeline.stages");
  }
  const std::string partition = config.word("pipeline.partition");
  if (partition == "parameters" || partition == "uniform") {
    out.set("split", partition == "uniform" ? "even" : "work", "pipeline.partition");
  } else if (!partition.empty() && partition != "best") {
    out.note("pipeline.partition", Fate::missing,
             "must be uniform or parameters; --split takes a list");
  }
  BatchSizes sizes;
  sizes.global_key = "train_batch_size";
  sizes.micro_key = "train_micro_batch_size_per_gpu";
  sizes.accumulation_key = "gradient_accumulation_steps";
  sizes.global = config.whole(sizes.global_key).value_or(0);
  sizes.micro = config.whole(sizes.micro_key).value_or(0);
  sizes.accumulation = config.whole(sizes.accumulation_key).value_or(0);
  if (ranks > 0) {
    if (tp > ranks || pp > ranks || ranks % (tp * pp) != 0) {
      throw UsageError(Flag("ranks"), str("got ", ranks, "; must be a multiple of tp ", tp,
                                          " × pp ", pp, " = ", tp * pp));
    }
    sizes.replicas = ranks / (tp * pp);
    out.set("dp", str(sizes.replicas), "--ranks");
  }
  take_mics(config, out, ranks > 0 ? sizes.replicas : 0);
  set_batch(out, sizes);
}

void take_rest(DeepSpeedConfig& config, Imported& out, const DsValue& root) {
  config.take_number("gradient_clipping", "clip", 0);
  const DsValue* const recompute = config.find("activation_checkpointing");
  const bool interval = config.whole("pipeline.activation_checkpoint_interval").value_or(0) > 0;
  if (recompute != nullptr || interval) {
    const std::string from =
        interval ? "pipeline.activation_checkpoint_interval" : "activation_checkpointing";
    out.set("recompute", "full", from);
    if (!interval) {
      out.note(from, Fate::changed,
               "imported as recompute = \"full\"; in DeepSpeed the model's code decides whether to "
               "recompute: --recompute none if it does not");
    }
  }
  const std::string path = config.word("tensorboard.output_path");
  if (config.truth("tensorboard.enabled").value_or(false)) {
    out.set("tensorboard", path.empty() ? "tensorboard" : path, "tensorboard.output_path");
  }
  if (config.truth("elasticity.enabled").value_or(false)) {
    const std::int64_t fewest = config.whole("elasticity.min_gpus").value_or(1);
    out.set("elastic", str(fewest, ":", config.whole("elasticity.max_gpus").value_or(fewest)),
            "elasticity.min_gpus, max_gpus");
    out.note("elasticity.enabled", Fate::open,
             "--elastic applies to restarts: give --max-restarts and --save too");
  }
  if (!root.contains("zero_optimization")) out.set("zero", "0", "no zero_optimization");
}

}  // namespace

Imported import_deepspeed(std::string_view text, const std::string& where, int ranks) {
  const DsValue root = parse_strictly(text, kMostDepth, where);
  if (!root.is_object())
    throw DataError(str(where, " is not a JSON object; must be a DeepSpeed config"));
  Imported out;
  DeepSpeedConfig config(root, out);
  note_keys(root, "", nullptr, out);
  take_mesh(config, out, ranks);
  take_zero(config, out);
  take_types(config, out);
  take_optimizer(config, out);
  take_scheduler(config, out);
  take_rest(config, out, root);
  out.note("the model", Fate::open,
           "a DeepSpeed config does not describe it: give --model, or --init-from");
  return out;
}

}  // namespace tessera::cli
