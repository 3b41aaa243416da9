#include "tessera/train/config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/shape_json.h"
#include "tessera/kernels/rules.h"
#include "tessera/planner/step_time.h"
#include "tessera/planner/toml_text.h"
#include "tessera/train/adapters.h"
#include "tessera/train/config_checks.h"
#include "tessera/train/init_from.h"
#include "tessera/train/resuming.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kWarmup = 20;
constexpr std::int64_t kSteps = 240;

// Returns the model of --init-from. Throws UsageError if --model or sizes contradict it.
ModelShape resolve_start(const RunConfig& config) {
  ModelShape shape = initial_shape(config.init_from);
  RunConfig sizes = config;  // without the settings of experts that change no parameters
  sizes.balance_loss = sizes.z_loss = sizes.balance_bias_rate = sizes.router_jitter =
      sizes.expert_capacity = planner::kAutomatic;
  if (planner::has_sizes(sizes)) {
    throw UsageError(
        Flag("init-from"),
        "cannot be combined with --layers, --hidden, --heads, --kv-heads, --ffn, --vocab, "
        "--positions or sizes of experts: the sizes are those of the stored model. Omit them.");
  }
  planner::apply_sizes(shape, config);
  if (config.model_name == RunConfig().model_name) return shape;
  ModelShape named;
  try {
    named = huggingface::find_model(config.model_name);
  } catch (const UsageError& error) {
    throw UsageError(Flag("model"), error.what());
  }
  const std::string other = other_shape(huggingface::shape_json(named), shape);
  if (!other.empty()) {
    throw UsageError(Flag("init-from"), str(config.init_from, " has another model than --model ",
                                            config.model_name, ": ", other, ". Omit --model."));
  }
  return shape;
}

ModelShape resolve_model(const RunConfig& config) {
  ModelShape shape;
  if (!config.init_from.empty()) return resolve_start(config);
  try {
    shape = huggingface::find_model(config.model_name);
  } catch (const UsageError& error) {
    throw UsageError(Flag("model"), str(error.what(), " (--layers, --hidden, --heads, --vocab)"));
  }
  if (!planner::has_sizes(config)) return shape;
  try {
    if (config.positions > 0 && shape.rotary()) {
      throw UsageError(str("positions: got ", config.positions, ", but --model ", config.model_name,
                           " has rotary positions and learns none. Omit it."),
                       "positions");
    }
    planner::apply_sizes(shape, config);
    shape.name.clear();
    if (!shape.rotary()) {
      shape.positions =
          config.positions > 0 ? config.positions : std::max(shape.positions, config.seq);
    }
    check(shape);
    return shape;
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()), error.field());
  }
}

std::int64_t multiply_samples(std::int64_t epochs, std::uint64_t samples) {
  constexpr std::int64_t kMaxSamples = std::int64_t{1} << 53;
  if (samples > static_cast<std::uint64_t>(kMaxSamples / epochs)) {
    throw UsageError(Flag("epochs"), str("got ", epochs, " of ", samples,
                                         " samples each; must be at most 2^53 samples in total"));
  }
  return epochs * static_cast<std::int64_t>(samples);
}

void resolve_batch(const RunConfig& config, int ranks, Resolved& out) {
  const std::int64_t micro = config.micro_batch * ranks;
  if (config.global_batch == 0) {
    out.grad_accum = std::max<std::int64_t>(1, config.grad_accum);
    out.global_batch = micro * out.grad_accum;
    return;
  }
  const std::int64_t global = config.global_batch;
  if (global % micro != 0) {
    const std::int64_t below = global / micro * micro;
    throw UsageError(
        Flag("global-batch"),
        str("got ", global, ", which --micro-batch ", config.micro_batch, " × ", ranks,
            ranks == 1 ? " rank" : " ranks", " does not divide; must be a multiple, such as ",
            below > 0 ? str(below, " or ") : std::string(), below + micro));
  }
  if (config.grad_accum != 0 && config.grad_accum * micro != global) {
    throw UsageError(Flag("grad-accum"),
                     str("got ", config.grad_accum, ", but --global-batch ", global,
                         " with --micro-batch ", config.micro_batch, " on ", ranks,
                         " ranks requires ", global / micro, ". Omit one of them."));
  }
  out.grad_accum = global / micro;
  out.global_batch = global;
}

// Opens the data only if its number of samples or its tokenizer is needed.
void resolve_data(const RunConfig& config, Resolved& out) {
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

// Returns the axes that cut the model or its tokens as flags: "--tp 2 × --pp 1".
std::string flags_text(const Axes& axes) {
  std::string text;
  for (const Axis axis : kPrintedAxes) {
    if (kDataAxes.contains(axis) || (is_optional(axis) && axes.size(axis) == 1)) continue;
    text += str(text.empty() ? "" : " × ", axis_flag(axis), " ", axes.size(axis));
  }
  return text;
}

// Returns the axes, with the number of replicas that follows from the number of ranks.
Axes resolve_mesh(const RunConfig& config, int ranks) {
  const Axes& model = config.axes;
  const std::int64_t parts = model.model_ranks();
  if (ranks % parts != 0) {
    throw UsageError(
        str(flags_text(model), " = ", parts, " does not divide the ", plural(ranks, "rank"),
            "; ranks must be dp times that, such as ", (ranks / parts + 1) * parts),
        "tp");
  }
  const auto dp = static_cast<int>(ranks / parts);
  if (config.axes.dp() != 0 && config.axes.dp() != dp) {
    throw UsageError(Flag("dp"), str("got ", config.axes.dp(), ", but ", ranks, " ranks with ",
                                     flags_text(model), " make ", dp, ". Omit --dp or --ranks."));
  }
  if (config.comm == Comm::off && parts > 1) {
    throw UsageError(
        str("--comm off: cannot be combined with ", flags_text(model), ", whose ranks cannot ",
            "compute without communication; each of these must be 1"),
        "comm");
  }
  Axes axes = model.with_dp(dp);
  if (config.comm == Comm::off) axes.set_given(Axis::dp_replicate, 1);  // ranks do not communicate
  axes.check_replicas();
  return axes;
}

}  // namespace

int dry_rank(const RunConfig& config) {
  if (config.dry_rank.empty()) return 0;
  try {
    const Axes axes = resolve_mesh(config, ranks_wanted(config));
    return axes.rank_of(axes.coordinate_named(config.dry_rank));
  } catch (const UsageError& error) {
    throw UsageError(str("--dry-rank ", config.dry_rank, ": ", error.what()), "dry-rank");
  }
}

namespace {

// [Note: batch and rate] The gradient of a larger batch has less noise, which allows a larger
// learning rate: linear in the batch (Goyal et al., 2017, for SGD), or with its square root
// (Krizhevsky, 2014; Malladi et al., 2022, for Adam).
double scaled_lr(const RunConfig& config, const Resolved& resolved) {
  if (config.lr_scaling == LrScaling::none) {
    if (config.lr_reference_batch > 0) {
      throw UsageError("--lr-reference-batch needs --lr-scaling linear or sqrt",
                       "lr-reference-batch");
    }
    return resolved.base_lr;
  }
  if (config.lr_reference_batch == 0) {
    throw UsageError(Flag("lr-scaling"),
                     str("got ", config.lr_scaling,
                         ", which needs --lr-reference-batch, the global batch that --lr is for"));
  }
  const double ratio =
      static_cast<double>(resolved.global_batch) / static_cast<double>(config.lr_reference_batch);
  return resolved.base_lr * (config.lr_scaling == LrScaling::linear ? ratio : std::sqrt(ratio));
}

}  // namespace

const std::vector<Field>& fields() { return planner::fields(planner::Command::train); }

const Field& field(std::string_view name) {
  return planner::find_field(planner::Command::train, name);
}

comm::LinkOptions link_options(const RunConfig& config) {
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
    throw UsageError(Flag("link-latency"),
                     str("got ", quote(config.link_latency),
                         ", must be at most 60s for each step of a collective"));
  }
  if (link.slowed() && config.backend != BackendName::automatic &&
      config.backend != BackendName::shm) {
    throw UsageError(str("--link-bandwidth, --link-latency: got --backend ", config.backend,
                         ", but only the shm backend can limit links; must be shm or auto"));
  }
  return link;
}

data::DataOptions data_options(const RunConfig& config, const Resolved& resolved) {
  return {.data = config.data,
          .val_data = config.val_data,
          .val_fraction = config.val_fraction,
          .order = std::string(name(config.sample_order)),
          .documents = std::string(name(config.documents)),
          .pack = std::string(name(config.pack)),
          .epochs = config.epochs,
          .seq = resolved.seq,
          .seed = static_cast<std::uint64_t>(config.seed)};
}

std::int64_t steps_in_all(const RunConfig& config, const Resolved& resolved,
                          std::int64_t sample_shift) {
  if (resolved.total_samples == 0) return config.steps > 0 ? config.steps : kSteps;
  const std::int64_t left = std::max<std::int64_t>(0, resolved.total_samples - sample_shift);
  const std::int64_t fill = config.last_batch == LastBatch::pad ? resolved.global_batch - 1 : 0;
  const std::int64_t steps = (left + fill) / resolved.global_batch;
  return config.steps > 0 ? std::min(config.steps, steps) : steps;
}

Resolved resolve(const RunConfig& config, int ranks) {
  // Check the bounds first: a configuration may also be made by code.
  for (const Field& each : fields()) {
    if (each.alias) continue;
    RunConfig copy;
    set(copy, each, get(config, each));
  }
  link_options(config);
  Resolved out;
  out.model = resolve_model(config);
  out.model.lora = requested_adapters(config, out.model);
  out.layout = config.layout;
  std::visit(
      [&](const auto& rule) {
        out.layout.moments =
            bytes_per_moment(config.optimizer_state) * static_cast<double>(rule.states().size());
        if constexpr (requires { rule.matrix_states(); }) {
          out.layout.matrix_moments = 4 * static_cast<double>(rule.matrix_states().size());
        }
      },
      rules::named(name(config.optimizer), config));
  out.axes = resolve_mesh(config, ranks);
  planner::check_replicas_at(config.zero, out.axes);
  out.ranks = config.comm == Comm::off ? 1 : out.axes.dp();
  out.policy = config.policy();
  const std::int64_t most = out.model.longest();  // 0: any length
  out.seq = config.seq > 0 ? config.seq
            : most > 0     ? std::min(planner::kRunSeq, most)
                           : planner::kRunSeq;
  if (most > 0 && out.seq > most) {
    throw UsageError(Flag("seq"),
                     str("got ", out.seq, ", but ", longest_reason(out.model), "; must be at most ",
                         most, out.model.rotary() ? "" : ", or a larger --positions"));
  }
  // Context parallelism pads its parts.
  if (const int ranks = config.sequence_ranks();
      out.axes.size(Axis::cp) == 1 && out.seq % ranks != 0) {
    throw UsageError(Flag("seq"),
                     str("got ", out.seq, ", which the ", ranks, " ranks of --tp ", ranks,
                         " --sequence-parallel do not divide; must be a multiple, such as ",
                         (out.seq / ranks + 1) * ranks));
  }
  check_combinations(config, ranks);
  if (config.recover > 0 && out.model.experts.any()) {
    throw UsageError(Flag("recover"), str("got ", config.recover, ", which does not support ",
                                          "mixtures of experts yet. Omit it."));
  }
  resolve_batch(config, out.axes.dp(), out);
  out.base_lr =
      config.lr == planner::kAutomatic ? planner::default_lr(out.model.params()) : config.lr;
  out.lr = scaled_lr(config, out);
  resolve_data(config, out);
  out.schedule = {config.lr_schedule, config.warmup, out.steps, config.decay_share,
                  config.min_lr_ratio};
  if (config.warmup < 0) out.schedule.warmup = std::min(kWarmup, out.steps / 5);
  try {
    check(out.schedule);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
  constexpr std::int64_t kMaxTokens = 1'000'000'000'000'000;
  if (out.global_batch > kMaxTokens / out.seq) {
    throw UsageError(str("--micro-batch ", config.micro_batch, ": a step has ", out.global_batch,
                         " sequences of ", out.seq, " tokens; must be at most 10^15 tokens"),
                     "micro-batch");
  }
  return out;
}

std::string to_toml(const RunConfig& config) {
  return planner::settings_toml(config, fields(), [](const Field&) { return ""; });
}

void read_config(RunConfig& config, const std::string& path, std::vector<std::string>* named) {
  parse_config(config,
               read_small_file(path, planner::kMaxToml,
                               "a TOML file, such as --print-config prints", "--config"),
               path, named);
}

void parse_config(RunConfig& config, std::string_view text, const std::string& file,
                  std::vector<std::string>* named) {
  const std::string where = "--config: " + file;
  RunConfig read = config;  // a file that fails changes nothing
  std::map<std::string, std::int64_t> lines;
  for (const planner::FileSetting& each : planner::parse_settings(text, where)) {
    try {
      const Field& known = field(each.key);
      if (const auto [first, fresh] = lines.emplace(known.name, each.line); !fresh) {
        throw UsageError(
            str(each.key, " is also in line ", first->second, "; must be given only once"));
      }
      set(read, known, each.text);
    } catch (const UsageError& error) {
      throw error.within(str(where, ", line ", each.line));
    }
  }
  config = std::move(read);
  if (named == nullptr) return;
  for (const auto& [name, line] : lines) named->push_back(name);
}

schedule::Schedule schedule_of(const RunConfig& config, const Resolved& resolved) {
  if (!config.pipelined()) return schedule::one_f_one_b(1, 1);
  return schedule::make(config.schedule, config.pp(), static_cast<int>(resolved.grad_accum),
                        config.chunks);
}

planner::RunConfig question(const RunConfig& config, const Resolved& resolved,
                            std::optional<bool> shares) {
  planner::check_compression(config);
  planner::RunConfig question = config;
  question.hardware.name = name(config.device);
  question.hardware.cpu = config.device == Device::cpu &&
                          shares.value_or(comm::backend_kind(config.backend).shares_memory);
  question.software = planner::Software::tessera;
  question.gpu = config.device == Device::cuda;
  question.model = resolved.model;
  question.seq = resolved.seq;
  question.axes = resolved.axes.with_dp(resolved.ranks);
  question.per_node = question.world();
  question.layout = resolved.layout;
  question.grad_reduce = resolved.policy;
  if (config.gather != Gather::copy) question.gather.reset();  // the ranks choose
  question.grad_accum = resolved.grad_accum;
  question.global_batch = 0;
  question.chunks = schedule_of(config, resolved).chunks;
  if (!question.pipelined()) {
    question.schedule = ScheduleChoice::one_f_one_b;
    question.split = "even";
  }
  return planner::resolve(question);
}

std::optional<double> predicted_step(const RunConfig& config, const Resolved& resolved) {
  if (config.hardware_name.empty()) return std::nullopt;
  if (resolved.model.lora.any()) {
    throw UsageError(Flag("hardware"),
                     "the planner predicts memory and traffic of adapters, but not step times. "
                     "Omit it with --lora-rank and --lora-from.");
  }
  planner::Catalog catalog;
  if (!config.hardware_file.empty()) catalog.read(config.hardware_file);
  planner::RunConfig asked = question(config, resolved);
  asked.hardware = planner::with_precision(catalog.find(config.hardware_name),
                                           config.matmul_precision, config.precision);
  return planner::step_time(asked).step();
}

planner::RunPlan plan(const RunConfig& config, const Resolved& resolved, const Coordinate& at,
                      std::optional<bool> shares) {
  return planner::plan_run(question(config, resolved, shares), at);
}

}  // namespace tessera::train
