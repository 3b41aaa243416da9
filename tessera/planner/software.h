#pragma once

#include <cstdint>
#include <string>

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// [Note: what software lacks] A plan accepts any stage and schedule, so that their effect can be
// compared. Advice proposes only those that the software supports.
enum class Lack : std::uint8_t {
  none,
  stage_two,     // Megatron-LM's distributed optimizer has no stage 2: it keeps whole gradients
  schedule,      // Megatron-LM has only 1f1b and interleaved
  split_at_3,    // Tessera: deferred weight gradients of parameters that stage 3 frees
  kept_in_pp,    // Tessera: parameters kept between the passes of a pipeline
  state_on_gpu,  // Tessera: small or offloaded optimizer state of a model on GPUs
  tied_on_one,   // Tessera: a tied embedding and its head on one pipeline rank
};

// Returns the first unsupported feature of the question.
Lack lack_of(const RunConfig& question);
// Returns a sentence about it; "" for none.
std::string lack_words(const RunConfig& question);
// Returns whether `other` uses an unsupported feature that `now` does not use.
bool newly_lacks(const RunConfig& other, const RunConfig& now);

// Returns the software's own setting for the question's ZeRO stage: "in Megatron-LM:
// --use-distributed-optimizer". "" for Tessera, whose flag is the plan's, and if nothing is
// sharded.
std::string stage_in_software(const RunConfig& question);
// Returns the same in parentheses if the stage differs between `now` and `other`: " (in
// Megatron-LM: …)". Otherwise "".
std::string new_stage_in_software(const RunConfig& other, const RunConfig& now);

// Returns the setting of the software for replicas, as the end of a sentence: " (in PyTorch: …)".
// "" if there is none to name.
std::string replicas_in_software(const RunConfig& question);

// Throws UsageError if linears in fp8 are not possible with the question's layout or software.
void check_precision(const RunConfig& question);

// Parameters and state as Megatron-LM's log reports them, for comparison: no biases and no
// positions, the vocabulary padded to 128 · tp, 18 bytes per parameter or 6 + 12/dp with its
// distributed optimizer (here: any ZeRO stage), and MiB printed as MB.
struct MegatronReport {
  double in_blocks = 0;
  double in_embeddings = 0;
  double total() const { return in_blocks + in_embeddings; }
  double most_loaded_shard = 0;
  double bytes = 0;  // of weights and optimizer on that shard
  double mib() const { return bytes / (1 << 20); }
};
MegatronReport megatron_report(const RunConfig& resolved);  // throws UsageError without a shape

}  // namespace tessera::planner
