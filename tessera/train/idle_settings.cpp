#include "tessera/train/idle_settings.h"

#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "tessera/core/text.h"
#include "tessera/kernels/rules.h"

namespace tessera::train {
namespace {

// Returns a setting as a flag: "--chunks 4", "--no-prefetch".
std::string as_flag(const TrainConfig& config, const Field& field) {
  const std::string value = get(config, field);
  if (field.is_flag()) return str(value == "true" ? "--" : "--no-", field.name);
  return str("--", field.name, " ", value);
}

// Collects a line for each setting that has no effect.
class Idle {
 public:
  explicit Idle(const TrainConfig& config) : config_(config) {}

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
  const TrainConfig& config_;
  const TrainConfig usual_ = {};
  std::vector<std::string> lines_;
};

void need_optimizer(const TrainConfig& config, Idle& idle) {
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
      rules::named(config.optimizer, config));
}

}  // namespace

std::vector<std::string> idle_settings(const TrainConfig& config, const Resolved& resolved) {
  Idle idle(config);
  idle.need(resolved.model.lora.any(), "to adapters, with --lora-rank or --lora-from",
            {"lora-alpha", "lora-targets"});
  idle.need(config.lora_from.empty(), "to new adapters, and those of --lora-from have their own",
            {"lora-alpha", "lora-targets"});

  const bool synthetic =
      config.data == "synthetic" && (config.val_data.empty() || config.val_data == "synthetic");
  idle.need(!synthetic, "to files, not to --data synthetic", {"order", "documents", "pack"});
  idle.need(config.epochs > 0, "with --epochs", {"last-batch"});

  idle.need(resolved.axes.pp() > 1, "to pipelines, with --pp 2 or more",
            {"schedule", "split", "chunks"});
  idle.need(resolved.ranks > 1, "between replicas, with --dp 2 or more",
            {"grad-compression", "overlap-grad-reduce"});
  idle.need(config.grad_compression == "powersgd", "with --grad-compression powersgd",
            {"powersgd-rank", "powersgd-warmup"});
  idle.need(config.zero == 1 || config.zero == 2, "with --zero 1 or 2", {"overlap-param-gather"});
  idle.need(config.zero == 3, "with --zero 3", {"prefetch", "keep-params", "gather"});
  idle.need(config.backend == "dry", "with --backend dry", {"dry-rank"});
  idle.need(resolved.axes.world() > 1, "between ranks, and this run has one rank",
            {"link-bandwidth", "link-latency"});

  need_optimizer(config, idle);
  idle.need(config.lr_schedule != "constant", "to a decaying rate, with another --lr-schedule",
            {"min-lr-ratio"});
  idle.need(config.lr_schedule == "wsd", "with --lr-schedule wsd", {"decay-share"});

  idle.need(!config.save.empty(), "to checkpoints, with --save",
            {"save-minutes", "keep-last", "keep-every", "async-save", "save-retries"});
  if (!config.save.empty()) {
    idle.need(config.save_every == 0, "without --save-every", {"save-minutes"});
    idle.need(config.keep_last > 0, "with --keep-last 1 or more, and 0 keeps all", {"keep-every"});
  }
  idle.need(!config.trace.empty(), "with --trace", {"trace-steps"});
  return idle.take();
}

}  // namespace tessera::train
