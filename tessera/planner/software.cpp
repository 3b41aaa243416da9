#include "tessera/planner/software.h"

#include <array>

#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

Lack lack_of_megatron(const Question& q) {
  if (q.zero == 2 && q.dp() != 1) return Lack::stage_two;
  const bool has = q.schedule == "1f1b" || q.schedule == "interleaved";
  return q.pp() > 1 && !has ? Lack::schedule : Lack::none;
}

// As tessera/train/mesh_check.cpp refuses it.
Lack lack_of_tessera(const Question& q) {
  if (q.pp() == 1) return Lack::none;
  const bool v = q.schedule == "zb-v";
  if (q.zero == 3 && (v || q.schedule == "zb-h1")) return Lack::split_at_3;
  if (q.zero == 3 && q.keep_params) return Lack::kept_in_pp;
  return v && !q.state_only() && q.model.tied ? Lack::tied_on_one : Lack::none;
}

// [stage]. What has none is a lack, or nothing sharded.
constexpr std::array<const char*, 4> kMegatronStages = {
    "", "--use-distributed-optimizer", "",
    "its FSDP, --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"};
constexpr std::array<const char*, 4> kPyTorchStages = {
    "", "ZeroRedundancyOptimizer", "fully_shard with reshard_after_forward=False",
    "FSDP's fully_shard"};

}  // namespace

Lack lack_of(const Question& q) {
  if (q.software == Software::megatron) return lack_of_megatron(q);
  if (q.software == Software::tessera) return lack_of_tessera(q);
  return Lack::none;
}

std::string lack_words(const Question& q) {
  switch (lack_of(q)) {
    case Lack::none: break;
    case Lack::stage_two:
      return "Megatron-LM's distributed optimizer, often called ZeRO-2, shards the optimizer's "
             "state alone";
    case Lack::schedule:
      return str("Megatron-LM has no schedule ", q.schedule, ": it runs 1f1b and interleaved");
    case Lack::split_at_3:
      return str("tessera train refuses --schedule ", q.schedule,
                 " with --zero 3, which frees a block when it has its gradients");
    case Lack::kept_in_pp:
      return "tessera train refuses --keep-params with --pp: several micro-batches are under way";
    case Lack::tied_on_one:
      return str("tessera train refuses --schedule ", q.schedule,
                 " for a tied embedding, whose two ends would be on one rank");
  }
  return "";
}

bool newly_lacks(const Question& other, const Question& now) {
  const Lack lack = lack_of(other);
  return lack != Lack::none && lack != lack_of(now);
}

std::string stage_in_software(const Question& q) {
  if (!q.software || q.software == Software::tessera || q.dp() == 1) return "";
  const auto& stages = q.software == Software::megatron ? kMegatronStages : kPyTorchStages;
  const std::string_view words = stages.at(static_cast<std::size_t>(q.zero));
  return words.empty() ? "" : str("in ", title(*q.software), ": ", words);
}

std::string new_stage_in_software(const Question& other, const Question& now) {
  const std::string words = other.zero == now.zero ? "" : stage_in_software(other);
  return words.empty() ? "" : str(" (", words, ")");
}

std::string replicas_in_software(const Question& q) {
  if (q.replicas() == 1 || q.software == Software::tessera || !q.software) return "";
  if (q.software == Software::pytorch) {
    return str(" (in PyTorch: fully_shard over a mesh of ", q.replicas(), " × ", q.shards(), ")");
  }
  if (q.zero == 1) {
    return str(" (in Megatron-LM: --num-distributed-optimizer-instances ", q.replicas(), ")");
  }
  return "";
}

}  // namespace tessera::planner
