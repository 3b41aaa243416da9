#pragma once

#include "tessera/planner/question.h"

namespace tessera::planner {

// Megatron-LM's own account of parameters and state, to compare with its log: no biases and no
// positions, the vocabulary padded to 128 · tp, 18 bytes a parameter or 6 + 12/dp with its
// distributed optimizer (here: any ZeRO stage), and MiB printed as MB.
struct MegatronReport {
  double in_blocks = 0;
  double in_embeddings = 0;
  double total() const { return in_blocks + in_embeddings; }
  double most_loaded_shard = 0;
  double bytes = 0;  // of weights and optimizer on that shard
  double mib() const { return bytes / (1 << 20); }
};
MegatronReport megatron_report(const Question& settled);  // throws UsageError without a shape

}  // namespace tessera::planner
