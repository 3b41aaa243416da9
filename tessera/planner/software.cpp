#include "tessera/planner/software.h"

#include <array>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

Lack lack_of_megatron(const RunConfig& q) {
  if (q.zero == 2 && q.averages_gradients()) return Lack::stage_two;
  const bool has =
      q.schedule == ScheduleChoice::one_f_one_b || q.schedule == ScheduleChoice::interleaved;
  return q.pipelined() && !has ? Lack::schedule : Lack::none;
}

// The same conditions as check_mesh() in tessera/train/from_config.cpp.
Lack lack_of_tessera(const RunConfig& q) {
  const bool plain = q.optimizer_state == OptimizerState::fp32 && !q.offloads_optimizer();
  const Lack of_state = q.gpu.value_or(false) && !plain ? Lack::state_on_gpu : Lack::none;
  if (!q.pipelined()) return of_state;
  const bool v = q.schedule == ScheduleChoice::zb_v;
  if (q.zero == 3 && (v || q.schedule == ScheduleChoice::zb_h1)) return Lack::split_at_3;
  if (q.zero == 3 && q.keep_params) return Lack::kept_in_pp;
  return v && !q.state_only() && q.model.tied ? Lack::tied_on_one : of_state;
}

// [stage]. Empty if the stage is unsupported or shards nothing.
constexpr std::array<const char*, 4> kMegatronStages = {
    "", "--use-distributed-optimizer", "",
    "its FSDP, --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"};
constexpr std::array<const char*, 4> kPyTorchStages = {
    "", "ZeroRedundancyOptimizer", "fully_shard with reshard_after_forward=False",
    "FSDP's fully_shard"};

}  // namespace

Lack lack_of(const RunConfig& q) {
  if (q.software == Software::megatron) return lack_of_megatron(q);
  if (q.software == Software::tessera) return lack_of_tessera(q);
  return Lack::none;
}

std::string lack_words(const RunConfig& q) {
  switch (lack_of(q)) {
    case Lack::none: break;
    case Lack::stage_two:
      return "Megatron-LM's distributed optimizer, often called ZeRO-2, shards only the optimizer "
             "state";
    case Lack::schedule:
      return str("Megatron-LM has no schedule ", q.schedule, ": it runs 1f1b and interleaved");
    case Lack::split_at_3:
      return str("tessera train refuses --schedule ", q.schedule,
                 " with --zero 3, which frees a block once it has its gradients");
    case Lack::kept_in_pp:
      return "tessera train refuses --keep-params with --pp: several micro-batches are in flight";
    case Lack::state_on_gpu:
      return str(
          "tessera train --device cuda refuses ",
          q.offloads_optimizer() ? "--offload" : str("--optimizer-state ", name(q.optimizer_state)),
          ", which only ranks on CPUs support");
    case Lack::tied_on_one:
      return str("tessera train refuses --schedule ", q.schedule,
                 " with a tied embedding, because embedding and head would be on one rank");
  }
  return "";
}

bool newly_lacks(const RunConfig& other, const RunConfig& now) {
  const Lack lack = lack_of(other);
  return lack != Lack::none && lack != lack_of(now);
}

std::string stage_in_software(const RunConfig& q) {
  if (!q.software || q.software == Software::tessera || !q.averages_gradients()) return "";
  const auto& stages = q.software == Software::megatron ? kMegatronStages : kPyTorchStages;
  const std::string_view words = stages.at(static_cast<std::size_t>(q.zero));
  return words.empty() ? "" : str("in ", title(*q.software), ": ", words);
}

std::string new_stage_in_software(const RunConfig& other, const RunConfig& now) {
  const std::string words = other.zero == now.zero ? "" : stage_in_software(other);
  return words.empty() ? "" : str(" (", words, ")");
}

std::string replicas_in_software(const RunConfig& q) {
  if (q.replicas() == 1 || q.software == Software::tessera || !q.software) return "";
  if (q.software == Software::pytorch) {
    return str(" (in PyTorch: fully_shard over a mesh of ", q.replicas(), " × ", q.shards(), ")");
  }
  if (q.zero == 1) {
    return str(" (in Megatron-LM: --num-distributed-optimizer-instances ", q.replicas(), ")");
  }
  return "";
}

void check_precision(const RunConfig& q) {
  if (q.precision != Precision::fp8) return;
  if (q.layout.param >= 4) {
    throw UsageError(Flag("precision"),
                     str("got fp8 with --layout ", q.layout.name,
                         ", whose linears have fp32 inputs. Use a layout with 16-bit parameters, "
                         "such as bf16."));
  }
  if (q.software != Software::tessera) {
    throw UsageError(Flag("precision"),
                     "got fp8, which is planned for Tessera only. Use --software tessera, or "
                     "layout.");
  }
}

MegatronReport megatron_report(const RunConfig& q) {
  if (q.state_only()) {
    throw UsageError(
        "--convention megatron: requires the shape of a model; --params gives only its size",
        "convention");
  }
  const ModelShape& m = q.model;
  if (m.experts.any()) {
    throw UsageError("--convention megatron: does not count experts; must be exact", "convention");
  }
  const double h = real(m.hidden), layers = real(m.layers);
  const double attention = 2 * h * real(m.q_width()) + 2 * h * real(m.kv_width());
  const double mlp = (m.swiglu ? 3 : 2) * h * real(m.ffn);
  const double table = real(padded_vocab(m.vocab, 128LL * q.tp())) * h;
  MegatronReport report;
  report.in_blocks = layers * (attention + mlp + 4 * h) + 2 * h;
  report.in_embeddings = m.tied ? table : 2 * table;
  // The first stage has the embedding; the head is on another stage unless there is only one.
  const double tables = !m.tied && !q.pipelined() ? 2 * table : table;
  report.most_loaded_shard = (report.in_blocks / q.pp() + tables) / q.tp();
  report.bytes = report.most_loaded_shard * (q.zero == 0 ? 18 : 6 + 12.0 / q.shards());
  return report;
}

}  // namespace tessera::planner
