#include "tessera/train/config.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kSeq = 64;
constexpr std::int64_t kWarmup = 20;

bool is_text(const Field& field) {
  return std::holds_alternative<std::string TrainConfig::*>(field.member);
}

// A TOML basic string.
std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr const char* hex = "0123456789abcdef";
      out += str("\\u00", hex[byte >> 4], hex[byte & 15]);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// A float of TOML has a point or an exponent.
std::string toml_value(const TrainConfig& config, const Field& field) {
  std::string text = get(config, field);
  if (is_text(field)) return toml_string(text);
  if (std::holds_alternative<double TrainConfig::*>(field.member) &&
      text.find_first_of(".eE") == std::string::npos) {
    text += ".0";
  }
  return text;
}

planner::ModelShape resolve_model(const TrainConfig& config) {
  planner::ModelShape shape;
  try {
    shape = planner::find_model_shape(config.model);
  } catch (const UsageError& error) {
    throw UsageError(str("--model: ", error.what(), " (--layers, --hidden, --heads, --vocab)"));
  }
  if (shape.swiglu || shape.kv_heads != shape.heads || shape.positions == 0) {
    throw UsageError(str("--model: got ", config.model,
                         ", which the planner knows but no code trains yet; wanted gpt-tiny, a "
                         "gpt2 or a gpt3"));
  }
  if (config.layers + config.hidden + config.heads + config.vocab + config.positions == 0) {
    return shape;
  }
  const auto or_else = [](std::int64_t given, std::int64_t own) { return given > 0 ? given : own; };
  try {
    return planner::gpt_shape(
        or_else(config.layers, shape.layers), or_else(config.hidden, shape.hidden),
        or_else(config.heads, shape.heads), or_else(config.vocab, shape.vocab),
        or_else(config.positions, std::max(shape.positions, config.seq)));
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
}

void resolve_batch(const TrainConfig& config, int ranks, Resolved& out) {
  const std::int64_t micro = config.micro_batch * ranks;
  if (config.global_batch == 0) {
    out.grad_accum = std::max<std::int64_t>(1, config.grad_accum);
    out.global_batch = micro * out.grad_accum;
    return;
  }
  const std::int64_t global = config.global_batch;
  if (global % micro != 0) {
    const std::int64_t below = global / micro * micro;
    throw UsageError(str("--global-batch: got ", global, ", which --micro-batch ",
                         config.micro_batch, " × ", ranks, ranks == 1 ? " rank" : " ranks",
                         " does not divide; wanted ",
                         below > 0 ? str(below, " or ") : std::string(), below + micro));
  }
  if (config.grad_accum != 0 && config.grad_accum * micro != global) {
    throw UsageError(str("--grad-accum: got ", config.grad_accum, ", but --global-batch ", global,
                         " with --micro-batch ", config.micro_batch, " on ", ranks, " ranks makes ",
                         global / micro, "; leave one of them out"));
  }
  out.grad_accum = global / micro;
  out.global_batch = global;
}

}  // namespace

std::string to_toml(const TrainConfig& config) {
  std::string text, group;
  for (const Field& field : fields()) {
    if (field.group != group) {
      group = field.group;
      std::string key = group;
      std::transform(key.begin(), key.end(), key.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      text += str(text.empty() ? "" : "\n", "[", key, "]\n");
    }
    text += str(field.name, " = ", toml_value(config, field), "\n");
  }
  return text;
}

Resolved resolve(const TrainConfig& config, int ranks) {
  // The bounds first: a configuration may come from code as well.
  for (const Field& each : fields()) {
    TrainConfig copy;
    set(copy, each, get(config, each));
  }
  Resolved out;
  out.model = resolve_model(config);
  out.layout = parse_state_layout(config.layout);
  if (config.optimizer == "sgd") out.layout.moments = config.momentum > 0 ? 4 : 0;
  out.ranks = config.comm == "off" ? 1 : ranks;
  const auto stage = static_cast<int>(config.zero);
  out.policy = config.grad_reduce == "auto"   ? default_reduce_policy(stage)
               : config.grad_reduce == "each" ? ReducePolicy::each
                                              : ReducePolicy::last;
  out.recompute = planner::parse_recompute(config.checkpoint_activations);
  out.schedule = {parse_lr_schedule(config.lr_schedule), config.warmup, config.steps,
                  config.decay_share, config.min_lr_ratio};
  if (config.warmup < 0) out.schedule.warmup = std::min(kWarmup, config.steps / 5);
  try {
    check(out.schedule);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
  out.seq = config.seq > 0 ? config.seq : std::min(kSeq, out.model.positions);
  if (out.seq > out.model.positions) {
    throw UsageError(str("--seq: got ", out.seq, ", but the model has ", out.model.positions,
                         " positions; wanted at most that, or a larger --positions"));
  }
  const std::int64_t tokens = config.data == "synthetic" ? 12 : 256;
  if (out.model.vocab < tokens) {
    throw UsageError(str("--vocab: got ", out.model.vocab, ", but --data ", config.data, " has ",
                         tokens, " different tokens; wanted ", tokens, " or more"));
  }
  if (config.device == "cpu" && config.backend == "nccl") {
    throw UsageError("--backend: got nccl, which needs --device cuda; wanted auto, shm or mpi");
  }
  resolve_batch(config, ranks, out);
  return out;
}

planner::RunPlan plan(const TrainConfig& config, const Resolved& resolved) {
  planner::RunQuestion question;
  question.model = resolved.model;
  question.layout = resolved.layout;
  question.stage = static_cast<int>(config.zero);
  question.dp = resolved.ranks;
  question.micro_batch = config.micro_batch;
  question.seq = resolved.seq;
  question.accumulation = static_cast<int>(resolved.grad_accum);
  question.policy = resolved.policy;
  question.keep_params = config.keep_params;
  question.recompute = resolved.recompute;
  return planner::plan_run(question);
}

}  // namespace tessera::train
