#include "tessera/train/config_checks.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/core/most_ranks.h"
#include "tessera/core/text.h"
#include "tessera/kernels/rules.h"

namespace tessera::train {
namespace {

// Range of ranks of --elastic.
struct Elastic {
  int fewest = 1, most = 1;
};
// Parses "2:8".
Elastic parse_elastic(const std::string& text) {
  Elastic range;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%d:%d%c", &range.fewest, &range.most, &rest) != 2 ||
      range.fewest < 1 || range.most < range.fewest || range.most > kMaxRanks) {
    throw UsageError(
        Flag("elastic"),
        str("got ", quote(text), ", must be FEWEST:MOST ranks, such as 2:8, at most ", kMaxRanks));
  }
  return range;
}

// Throws UsageError if --elastic is not a range of ranks, or if `ranks` is outside of it.
void check_elastic(const RunConfig& config, int ranks) {
  const Elastic range = parse_elastic(config.elastic);
  if (ranks >= range.fewest && ranks <= range.most) return;
  throw UsageError(Flag("elastic"),
                   str("got ", quote(config.elastic), ", but the run has ", plural(ranks, "rank"),
                       "; --ranks must be from ", range.fewest, " to ", range.most,
                       ". Omit --ranks and --dp to start ", range.most, "."));
}

void check_optimizer_state(const RunConfig& config) {
  const bool small = config.optimizer_state != OptimizerState::fp32;
  const bool offloads = parse_offload(config.offload, config.offload_dir).any();
  const Flag flag(small ? "optimizer-state" : "offload");
  const std::string got =
      str("got ", small ? std::string(name(config.optimizer_state)) : config.offload);
  if (small && config.optimizer != OptimizerChoice::adamw) {
    throw UsageError(flag, str(got, " with --optimizer ", config.optimizer,
                               ", whose state is fp32. Use --optimizer-state fp32, or --optimizer "
                               "adamw."));
  }
  if (offloads && config.optimizer == OptimizerChoice::muon) {
    throw UsageError(flag, str(got,
                               " with --optimizer muon, which needs whole matrices in memory. "
                               "Omit --offload, or use --optimizer adamw, sgd or lion."));
  }
  if ((small || offloads) && config.device == Device::cuda) {
    throw UsageError(flag,
                     str(got,
                         " with --device cuda, whose update kernels support only fp32 "
                         "state in the memory of the GPU. Use ",
                         small ? "--optimizer-state fp32" : "--zero 3", ", or --device cpu."));
  }
}

// Throws UsageError if the run cannot continue after a loss: [Note: recovery].
void check_recovery(const RunConfig& config) {
  if (config.recover == 0) {
    if (config.spares == 0) return;
    throw UsageError(Flag("spares"), str("got ", config.spares,
                                         ", but spare ranks wait for a loss. Add --recover."));
  }
  const auto refuse = [&](const std::string& problem) {
    throw UsageError(Flag("recover"), str("got ", config.recover, ", ", problem));
  };
  if (config.zero > 0 && config.axes.size(Axis::dp_replicate) < 2) {
    refuse(str("but --zero ", config.zero,
               " shards the state over all data-parallel ranks, so no whole replica is left after "
               "a loss. Add --dp-replicate 2 or more, or use --zero 0."));
  }
  if (config.device != Device::cpu) refuse("which needs --device cpu: GPUs are not supported yet");
  if (config.comm == Comm::off) refuse("but ranks without communication are not lost. Omit one.");
  if (config.on_nan == OnNan::rollback) {
    refuse("which does not support --on-nan rollback. Use stop or skip.");
  }
  if (config.optimizer_state != OptimizerState::fp32 ||
      parse_offload(config.offload, config.offload_dir).any()) {
    refuse("which keeps optimizer state in memory as fp32. Omit --optimizer-state and --offload.");
  }
  if (config.optimizer == OptimizerChoice::muon) {
    refuse(
        "which does not support --optimizer muon, whose update exchanges whole matrices. Use "
        "adamw, sgd or lion.");
  }
}

}  // namespace

int replicas_that_fit(const RunConfig& config, const Resolved& resolved, int whole) {
  const std::int64_t shards = config.zero == 0 ? 1 : resolved.axes.size(Axis::dp_shard);
  for (int count = whole; count > 0; --count) {
    if (resolved.global_batch % (count * shards * config.micro_batch) == 0) return count;
  }
  return 0;
}

int ranks_that_fit(const RunConfig& config, const Resolved& resolved, int ranks, int left) {
  if (config.elastic.empty()) return ranks;
  const auto parts = static_cast<int>(config.axes.model_ranks());
  for (int count = left / parts * parts; count >= parse_elastic(config.elastic).fewest;
       count -= parts) {
    if (count > 0 && count / parts % config.axes.size(Axis::dp_replicate) == 0 &&
        resolved.global_batch % (count / parts * config.micro_batch) == 0) {
      return count;
    }
  }
  return 0;
}

int ranks_wanted(const RunConfig& config) {
  if (config.ranks > 0) return static_cast<int>(config.ranks);
  std::int64_t ranks = config.axes.world();  // 0 without --dp
  if (ranks == 0 && !config.elastic.empty()) return parse_elastic(config.elastic).most;
  if (ranks == 0) {
    const std::int64_t parts = config.axes.model_ranks();
    ranks = (parts == 1 ? planner::kRunRanks : parts) *
            std::int64_t{config.axes.size(Axis::dp_replicate)};
  }
  return static_cast<int>(std::min<std::int64_t>(ranks, 1 << 20));
}

void check_combinations(const RunConfig& config, int ranks) {
  if (config.device == Device::cpu && comm::backend_kind(config.backend).needs_gpu) {
    throw UsageError(Flag("backend"),
                     str("got ", config.backend,
                         ", which needs --device cuda; must be auto, shm, two-level or tcp"));
  }
  if (config.device == Device::cpu && config.layout.fp16()) {
    throw UsageError(
        Flag("layout"),
        "got fp16 with --device cpu, but the loss scaling of layout fp16 is implemented "
        "only for GPUs. Use bf16, or --device cuda.");
  }
  if (config.device == Device::cpu && config.cuda_graph == CudaGraph::on) {
    throw UsageError(Flag("cuda-graph"),
                     "got on with --device cpu, which has no CUDA graphs. Use auto, or --device "
                     "cuda.");
  }
  if (config.device == Device::cpu && config.matmul_precision != MatmulPrecision::highest) {
    throw UsageError(Flag("matmul-precision"),
                     str("got ", config.matmul_precision,
                         " with --device cpu, whose products of fp32 tensors have one precision. "
                         "Use highest, or --device cuda."));
  }
  if (config.precision == Precision::fp8 && config.device == Device::cpu) {
    throw UsageError(Flag("precision"),
                     "got fp8 with --device cpu, but only GPUs compute in fp8. Use layout, or "
                     "--device cuda.");
  }
  if (config.precision == Precision::fp8 && config.overlap_tp) {
    throw UsageError(Flag("overlap-tp"),
                     "products of --precision fp8 are not sent in pieces. Omit one of the two.");
  }
  check_optimizer_state(config);
  if (comm::backend_kind(config.backend).simulated) {
    for (const auto& [asked, flag] :
         {std::pair(!config.save.empty(), "--save"), std::pair(config.resume != "none", "--resume"),
          std::pair(config.max_restarts > 0, "--max-restarts"),
          std::pair(config.recover > 0, "--recover"),
          std::pair(!config.init_from.empty(), "--init-from"),
          std::pair(config.comm == Comm::off, "--comm off")}) {
      if (!asked) continue;
      throw UsageError(Flag("backend"),
                       str("got ", config.backend, " with ", flag,
                           ", but it simulates the other ranks, so the trained parameters are "
                           "meaningless. Use another backend."));
    }
  }
  if (!config.elastic.empty()) {
    check_elastic(config, ranks);
    if (config.max_restarts == 0) {
      throw UsageError(
          Flag("elastic"),
          str("got ", quote(config.elastic),
              " without --max-restarts, but only a restart can continue with fewer ranks. "
              "Add --max-restarts."));
    }
  }
  check_recovery(config);
  for (const auto& [asked, flag] : {std::pair(config.eval_every > 0, "--eval-every"),
                                    std::pair(config.eval_batches > 0, "--eval-batches")}) {
    if (asked && config.val_data.empty() && config.val_fraction == 0) {
      throw UsageError(str(flag, " needs validation data. Add --val-data or --val-fraction."));
    }
  }
  for (const auto& [asked, flag] :
       {std::pair(config.resume == "auto", "--resume auto"),
        std::pair(config.save_every > 0, "--save-every"),
        std::pair(config.max_restarts > 0, "--max-restarts"),
        std::pair(config.on_save_error != OnSaveError::stop, "--on-save-error"),
        std::pair(config.on_nan == OnNan::rollback, "--on-nan rollback")}) {
    if (asked && config.save.empty()) {
      throw UsageError(str(flag, " needs --save, the folder for checkpoints"));
    }
  }
  if (config.comm == Comm::off && !config.save.empty()) {
    throw UsageError(Flag("save"),
                     "cannot be combined with --comm off, whose ranks train different models. Omit "
                     "one of them.");
  }
  if (!config.hardware_file.empty() && config.hardware_name.empty()) {
    throw UsageError(Flag("hardware-file"),
                     str("got ", quote(config.hardware_file),
                         " without --hardware, the name of an entry. Add --hardware."));
  }
}

namespace {

// Returns a setting as a flag: "--chunks 4", "--no-prefetch".
std::string as_flag(const RunConfig& config, const Field& field) {
  const std::string value = get(config, field);
  if (field.is_flag()) return str(value == "true" ? "--" : "--no-", field.name);
  return str("--", field.name, " ", value);
}

// Collects a line for each setting that has no effect.
class Idle {
 public:
  explicit Idle(const RunConfig& config) : config_(config) {}

  // Adds those of `names` that are not at their defaults, unless the run `has` the feature that
  // they act on. `with` describes that feature.
  void need(bool has, std::string_view with, std::initializer_list<std::string_view> names) {
    if (has) return;
    for (const std::string_view name : names) {
      const Field& each = field(name);
      if (get(config_, each) == get(usual_, each)) continue;
      lines_.push_back(str(as_flag(config_, each), " has no effect: it applies only ", with));
    }
  }

  std::vector<std::string> take() { return std::move(lines_); }

 private:
  const RunConfig& config_;
  const RunConfig usual_ = {};
  std::vector<std::string> lines_;
};

void need_optimizer(const RunConfig& config, Idle& idle) {
  std::visit(
      [&](const auto& rule) {
        const auto need = [&](bool has, std::string_view with, std::string_view name) {
          idle.need(has, with, {name});
        };
        using Rule = std::decay_t<decltype(rule)>;
        // Muon trains parameters that are not hidden matrices with AdamW.
        constexpr bool and_adamw = requires(Rule r) { r.elementwise; };
        need(
            and_adamw || requires(Rule r) { r.beta1; }, "with adamw, lion and muon", "beta1");
        need(
            and_adamw || requires(Rule r) { r.beta2; }, "with adamw, lion and muon", "beta2");
        need(
            and_adamw || requires(Rule r) { r.eps; }, "with adamw and muon", "eps");
        need(
            requires(Rule r) { r.momentum; }, "with sgd and muon", "momentum");
      },
      rules::named(name(config.optimizer), config));
}

}  // namespace

std::vector<std::string> idle_settings(const RunConfig& config, const Resolved& resolved) {
  Idle idle(config);
  idle.need(resolved.model.lora.any(), "to adapters, with --lora-rank or --lora-from",
            {"lora-alpha", "lora-targets"});
  idle.need(config.lora_from.empty(), "to new adapters, and those of --lora-from have their own",
            {"lora-alpha", "lora-targets"});

  const bool synthetic =
      config.data == "synthetic" && (config.val_data.empty() || config.val_data == "synthetic");
  idle.need(!synthetic, "to files, not to --data synthetic", {"order", "documents", "pack"});
  idle.need(config.epochs > 0, "with --epochs", {"last-batch"});

  idle.need(config.layout.param >= 4, "to fp32 parameters, with --layout fp32",
            {"matmul-precision"});
  idle.need(config.pipelined(), "to pipelines, with --pp 2 or more",
            {"schedule", "split", "chunks"});
  idle.need(config.comm == Comm::on && resolved.axes.ranks(kTokenAxes) > 1,
            "between replicas, with --dp 2 or more", {"grad-compression", "overlap-grad-reduce"});
  idle.need(resolved.axes.dp() > 1, "between replicas, with --dp 2 or more", {"recover"});
  idle.need(resolved.axes.size(Axis::cp) > 1, "to context parallelism, with --cp 2 or more",
            {"cp-kind"});
  idle.need(config.zero == 1 || config.zero == 2, "with --zero 1 or 2", {"overlap-param-gather"});
  idle.need(config.zero == 3, "with --zero 3", {"prefetch", "keep-params", "gather"});
  idle.need(config.backend == BackendName::dry, "with --backend dry", {"dry-rank"});
  idle.need(resolved.axes.world() > 1, "between ranks, and this run has one rank",
            {"link-bandwidth", "link-latency"});

  need_optimizer(config, idle);
  idle.need(config.lr_schedule != LrSchedule::Kind::constant,
            "to a decaying rate, with another --lr-schedule", {"min-lr-ratio"});
  idle.need(config.lr_schedule == LrSchedule::Kind::wsd, "with --lr-schedule wsd", {"decay-share"});

  idle.need(!config.save.empty(), "to checkpoints, with --save",
            {"save-minutes", "keep-last", "keep-every", "async-save", "save-retries"});
  idle.need(config.resume != "none", "when a checkpoint is loaded, with --resume",
            {"convert-optimizer-state"});
  if (!config.save.empty()) {
    idle.need(config.save_every == 0, "without --save-every", {"save-minutes"});
    idle.need(config.keep_last > 0, "with --keep-last 1 or more, and 0 keeps all", {"keep-every"});
  }
  idle.need(!config.trace.empty(), "with --trace", {"trace-steps"});
  return idle.take();
}

}  // namespace tessera::train
