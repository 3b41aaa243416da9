#include "tessera/train/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/huggingface/config.h"
#include "tessera/huggingface/shape_json.h"
#include "tessera/kernels/rules.h"
#include "tessera/train/adapters.h"
#include "tessera/train/config_checks.h"
#include "tessera/train/init_from.h"
#include "tessera/train/resuming.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kWarmup = 20;
constexpr std::int64_t kSteps = 240;

// Returns the model of --init-from. Throws UsageError if --model or sizes contradict it.
ModelShape resolve_start(const TrainConfig& config) {
  ModelShape shape = initial_shape(config.init_from);
  if (config.layers + config.hidden + config.heads + config.vocab + config.positions > 0) {
    throw UsageError(
        "--init-from: cannot be combined with --layers, --hidden, --heads, --vocab or "
        "--positions: the sizes are those of the stored model. Omit them.");
  }
  if (config.model == TrainConfig().model) return shape;
  ModelShape named;
  try {
    named = huggingface::find_model(config.model);
  } catch (const UsageError& error) {
    throw UsageError(str("--model: ", error.what()));
  }
  const std::string other = other_shape(huggingface::shape_json(named), shape);
  if (!other.empty()) {
    throw UsageError(str("--init-from: ", config.init_from, " has another model than --model ",
                         config.model, ": ", other, ". Omit --model."));
  }
  return shape;
}

ModelShape resolve_model(const TrainConfig& config) {
  ModelShape shape;
  if (!config.init_from.empty()) return resolve_start(config);
  try {
    shape = huggingface::find_model(config.model);
  } catch (const UsageError& error) {
    throw UsageError(str("--model: ", error.what(), " (--layers, --hidden, --heads, --vocab)"));
  }
  if (config.layers + config.hidden + config.heads + config.vocab + config.positions == 0) {
    return shape;
  }
  const auto or_else = [](std::int64_t given, std::int64_t own) { return given > 0 ? given : own; };
  try {
    if (shape.swiglu) {  // a Llama: its sizes are replaced one by one
      if (config.positions > 0) {
        throw UsageError(str("positions: got ", config.positions, ", but --model ", config.model,
                             " has rotary positions and learns none. Omit it."));
      }
      shape.name.clear();
      shape.layers = or_else(config.layers, shape.layers);
      shape.ffn = shape.ffn * or_else(config.hidden, shape.hidden) / shape.hidden;
      shape.hidden = or_else(config.hidden, shape.hidden);
      shape.window_from = std::min(shape.window_from, shape.layers);
      if (config.hidden > 0 || config.heads > 0) shape.head_width = 0;
      if (config.heads > 0) {
        shape.kv_heads = std::max<std::int64_t>(1, shape.kv_heads * config.heads / shape.heads);
        shape.heads = config.heads;
      }
      shape.vocab = or_else(config.vocab, shape.vocab);
      check(shape);
      return shape;
    }
    return gpt_shape(or_else(config.layers, shape.layers), or_else(config.hidden, shape.hidden),
                     or_else(config.heads, shape.heads), or_else(config.vocab, shape.vocab),
                     or_else(config.positions, std::max(shape.positions, config.seq)));
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
}

std::int64_t multiply_samples(std::int64_t epochs, std::uint64_t samples) {
  constexpr std::int64_t kMostSamples = std::int64_t{1} << 53;
  if (samples > static_cast<std::uint64_t>(kMostSamples / epochs)) {
    throw UsageError(str("--epochs: got ", epochs, " of ", samples,
                         " samples each; must be at most 2^53 samples in total"));
  }
  return epochs * static_cast<std::int64_t>(samples);
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
                         " does not divide; must be a multiple, such as ",
                         below > 0 ? str(below, " or ") : std::string(), below + micro));
  }
  if (config.grad_accum != 0 && config.grad_accum * micro != global) {
    throw UsageError(str("--grad-accum: got ", config.grad_accum, ", but --global-batch ", global,
                         " with --micro-batch ", config.micro_batch, " on ", ranks,
                         " ranks requires ", global / micro, ". Omit one of them."));
  }
  out.grad_accum = global / micro;
  out.global_batch = global;
}

// Opens the data only if its number of samples or its tokenizer is needed.
void resolve_data(const TrainConfig& config, Resolved& out) {
  const bool synthetic = config.data == "synthetic";
  std::int64_t vocab = synthetic ? 12 : 256;
  if (!synthetic) out.tokenizer = data::text_fingerprint();
  if (config.epochs > 0 || data::has_tokens(config.data)) {
    const data::DataFacts facts = data::facts_of(data_options(config, out));
    out.tokenizer = facts.fingerprint;
    vocab = facts.vocab;
    if (config.epochs > 0) {
      out.total_samples = multiply_samples(config.epochs, facts.samples_per_epoch);
    }
  }
  if (out.model.vocab < vocab) {
    throw UsageError(str(config.vocab > 0 ? "--vocab: got " : "--vocab: the model has ",
                         out.model.vocab, ", but --data ", config.data, " has ", vocab,
                         " different tokens; must be at least ", vocab));
  }
  out.steps = steps_in_all(config, out, 0);
  if (out.steps == 0) {
    throw DataError(str("--epochs: got ", config.epochs, " of --data ", config.data, ", which are ",
                        plural(out.total_samples, "sample"), ", fewer than the ", out.global_batch,
                        " of a step. Use more epochs, --last-batch pad, or a smaller batch."));
  }
}

// Returns the axes, with the number of replicas that follows from the number of ranks.
Axes resolve_mesh(const TrainConfig& config, int ranks) {
  const Axes& model = config.axes;
  const std::int64_t parts = model.model_ranks();
  if (ranks % parts != 0) {
    throw UsageError(str("--tp ", model.tp(), " × --pp ", model.pp(), " = ", parts,
                         " does not divide the ", ranks, ranks == 1 ? " rank" : " ranks",
                         "; ranks must be dp · tp · pp, such as ", (ranks / parts + 1) * parts));
  }
  const auto dp = static_cast<int>(ranks / parts);
  if (config.axes.dp() != 0 && config.axes.dp() != dp) {
    throw UsageError(str("--dp: got ", config.axes.dp(), ", but ", ranks, " ranks with --tp ",
                         model.tp(), " --pp ", model.pp(), " make ", dp,
                         ". Omit --dp or --ranks."));
  }
  if (config.comm == "off" && parts > 1) {
    throw UsageError(
        "--comm off: cannot be combined with --tp or --pp, whose ranks cannot compute without "
        "communication; must be --tp 1 --pp 1");
  }
  Axes axes = model.with_dp(dp);
  if (config.comm == "off") axes.set_given(Axis::dp_replicate, 1);  // ranks do not communicate
  axes.check_replicas();
  return axes;
}

}  // namespace

int dry_rank(const TrainConfig& config) {
  if (config.dry_rank.empty()) return 0;
  try {
    const Axes axes = resolve_mesh(config, ranks_wanted(config));
    return axes.rank_of(axes.coordinate_named(config.dry_rank));
  } catch (const UsageError& error) {
    throw UsageError(str("--dry-rank ", config.dry_rank, ": ", error.what()));
  }
}

namespace {

// [Note: batch and rate] The gradient of a larger batch has less noise, which allows a larger
// learning rate: linear in the batch (Goyal et al., 2017, for SGD), or with its square root
// (Krizhevsky, 2014; Malladi et al., 2022, for Adam).
double scaled_lr(const TrainConfig& config, const Resolved& resolved) {
  if (config.lr_scaling == "none") {
    if (config.lr_reference_batch > 0) {
      throw UsageError("--lr-reference-batch needs --lr-scaling linear or sqrt");
    }
    return resolved.base_lr;
  }
  if (config.lr_reference_batch == 0) {
    throw UsageError(str("--lr-scaling: got ", config.lr_scaling,
                         ", which needs --lr-reference-batch, the global batch that --lr is for"));
  }
  const double ratio =
      static_cast<double>(resolved.global_batch) / static_cast<double>(config.lr_reference_batch);
  return resolved.base_lr * (config.lr_scaling == "linear" ? ratio : std::sqrt(ratio));
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> rows = planner::fields(planner::Command::train);
    for (Field& row : rows) {  // choices that other modules define
      if (row.name == "optimizer") row.choices = rules::names();
      if (row.name == "backend") row.choices = comm::backend_names();
    }
    return rows;
  }();
  return all;
}

const Field& field(std::string_view name) {
  std::string flag(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  std::vector<std::string> names;
  for (const Field& each : fields()) {
    if (each.is_called(flag)) return each;
    names.push_back(each.name);
  }
  throw UsageError(str(quote(name), " is not a setting of a run", did_you_mean(flag, names)));
}

comm::LinkOptions link_options(const TrainConfig& config) {
  comm::LinkOptions link;
  const auto read = [](std::string_view flag, const std::string& text, auto parse, double& value) {
    if (text.empty()) return;
    try {
      value = parse(text);
    } catch (const UsageError& error) {
      throw UsageError(str(flag, ": ", error.what()));
    }
    if (value > 0) return;
    throw UsageError(str(flag, ": got ", quote(text),
                         ", must be greater than 0. Omit it for an unlimited link."));
  };
  read("--link-bandwidth", config.link_bandwidth, parse_rate, link.bandwidth);
  read("--link-latency", config.link_latency, parse_time, link.latency);
  constexpr double kLongestLatency = 60;  // seconds; more would end in the timeout of a collective
  if (link.latency > kLongestLatency) {
    throw UsageError(str("--link-latency: got ", quote(config.link_latency),
                         ", must be at most 60s for each step of a collective"));
  }
  if (link.slowed() && config.backend != "auto" && config.backend != "shm") {
    throw UsageError(str("--link-bandwidth, --link-latency: got --backend ", config.backend,
                         ", but only the shm backend can limit links; must be shm or auto"));
  }
  return link;
}

data::DataOptions data_options(const TrainConfig& config, const Resolved& resolved) {
  return {.data = config.data,
          .val_data = config.val_data,
          .val_fraction = config.val_fraction,
          .order = config.order,
          .documents = config.documents,
          .pack = config.pack,
          .epochs = config.epochs,
          .seq = resolved.seq,
          .seed = static_cast<std::uint64_t>(config.seed)};
}

std::int64_t steps_in_all(const TrainConfig& config, const Resolved& resolved,
                          std::int64_t sample_shift) {
  if (resolved.total_samples == 0) return config.steps > 0 ? config.steps : kSteps;
  const std::int64_t left = std::max<std::int64_t>(0, resolved.total_samples - sample_shift);
  const std::int64_t fill = config.last_batch == "pad" ? resolved.global_batch - 1 : 0;
  const std::int64_t steps = (left + fill) / resolved.global_batch;
  return config.steps > 0 ? std::min(config.steps, steps) : steps;
}

Resolved resolve(const TrainConfig& config, int ranks) {
  // Check the bounds first: a configuration may also be made by code.
  for (const Field& each : fields()) {
    TrainConfig copy;
    set(copy, each, get(config, each));
  }
  link_options(config);
  Resolved out;
  out.model = resolve_model(config);
  out.model.lora = requested_adapters(config, out.model);
  out.layout = parse_state_layout(config.layout);
  std::visit(
      [&](const auto& rule) {
        out.layout.moments = 4 * static_cast<int>(rule.states().size());
        if constexpr (requires { rule.matrix_states(); }) {
          out.layout.matrix_moments = 4 * static_cast<int>(rule.matrix_states().size());
        }
      },
      rules::named(config.optimizer, config));
  out.axes = resolve_mesh(config, ranks);
  planner::check_replicas_at(static_cast<int>(config.zero), out.axes);
  out.ranks = config.comm == "off" ? 1 : out.axes.dp();
  const auto stage = static_cast<int>(config.zero);
  out.policy = config.grad_reduce == "auto"   ? default_reduce_policy(stage)
               : config.grad_reduce == "each" ? ReducePolicy::each
                                              : ReducePolicy::last;
  out.recompute = planner::parse_recompute(config.recompute);
  const std::int64_t most = out.model.longest();  // 0: any length
  out.seq = config.seq > 0 ? config.seq
            : most > 0     ? std::min(planner::kRunSeq, most)
                           : planner::kRunSeq;
  if (most > 0 && out.seq > most) {
    throw UsageError(str("--seq: got ", out.seq, ", but ", longest_reason(out.model),
                         "; must be at most ", most,
                         out.model.rotary() ? "" : ", or a larger --positions"));
  }
  if (config.sequence_parallel && out.seq % config.axes.tp() != 0) {
    throw UsageError(str("--seq: got ", out.seq, ", which the ", config.axes.tp(),
                         " ranks of --tp ", config.axes.tp(),
                         " --sequence-parallel do not divide; must be a multiple, such as ",
                         (out.seq / config.axes.tp() + 1) * config.axes.tp()));
  }
  check_combinations(config, ranks);
  resolve_batch(config, out.axes.dp(), out);
  out.base_lr =
      config.lr == planner::kAutomatic ? planner::default_lr(out.model.params()) : config.lr;
  out.lr = scaled_lr(config, out);
  resolve_data(config, out);
  out.schedule = {parse_lr_schedule(config.lr_schedule), config.warmup, out.steps,
                  config.decay_share, config.min_lr_ratio};
  if (config.warmup < 0) out.schedule.warmup = std::min(kWarmup, out.steps / 5);
  try {
    check(out.schedule);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
  constexpr std::int64_t kMostTokens = 1'000'000'000'000'000;
  if (out.global_batch > kMostTokens / out.seq) {
    throw UsageError(str("--micro-batch ", config.micro_batch, ": a step has ", out.global_batch,
                         " sequences of ", out.seq, " tokens; must be at most 10^15 tokens"));
  }
  return out;
}

}  // namespace tessera::train
