// Inputs of tessera import for tests, and its results.
#pragma once

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/cli/import.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/planner/plan.h"
#include "tests/temporary_folder.h"

namespace tessera::cli {

inline const ImportNote* find_note(const Imported& got, std::string_view key) {
  for (const ImportNote& note : got.notes()) {
    if (note.key == key) return &note;
  }
  return nullptr;
}

// Returns the resolved question that `tessera plan --config` reads.
inline planner::RunConfig planned(const Imported& got, const std::string& model = "") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.toml";
  std::ofstream(path) << got.toml();
  planner::RunConfig settings = planner::RunConfig::for_plan();
  read_plan_config(path, settings);
  if (!model.empty()) settings.set("model", model);
  return planner::resolve(planner::look_up(settings, make_catalog()));
}

inline const std::vector<std::string> kGpt = {"--num-layers",
                                              "24",
                                              "--hidden-size",
                                              "2048",
                                              "--num-attention-heads",
                                              "16",
                                              "--seq-length",
                                              "1024",
                                              "--max-position-embeddings",
                                              "1024",
                                              "--vocab-size",
                                              "50257",
                                              "--tensor-model-parallel-size",
                                              "2",
                                              "--micro-batch-size",
                                              "4",
                                              "--global-batch-size",
                                              "64",
                                              "--train-iters",
                                              "1000",
                                              "--lr",
                                              "3e-4",
                                              "--min-lr",
                                              "3e-5",
                                              "--bf16",
                                              "--use-distributed-optimizer",
                                              "--overlap-grad-reduce",
                                              "--recompute-activations",
                                              "--use-flash-attn"};

// Flags of Megatron-LM's example of Mixtral.
inline const std::vector<std::string> kMixtral = {"--num-layers",
                                                  "32",
                                                  "--hidden-size",
                                                  "4096",
                                                  "--ffn-hidden-size",
                                                  "14336",
                                                  "--num-attention-heads",
                                                  "32",
                                                  "--group-query-attention",
                                                  "--num-query-groups",
                                                  "8",
                                                  "--swiglu",
                                                  "--normalization",
                                                  "RMSNorm",
                                                  "--disable-bias-linear",
                                                  "--position-embedding-type",
                                                  "rope",
                                                  "--rotary-base",
                                                  "1000000",
                                                  "--untie-embeddings-and-output-weights",
                                                  "--vocab-size",
                                                  "32000",
                                                  "--max-position-embeddings",
                                                  "32768",
                                                  "--num-experts",
                                                  "8",
                                                  "--moe-router-topk",
                                                  "2",
                                                  "--moe-router-load-balancing-type",
                                                  "aux_loss",
                                                  "--moe-aux-loss-coeff",
                                                  "1e-2",
                                                  "--moe-grouped-gemm",
                                                  "--moe-token-dispatcher-type",
                                                  "alltoall",
                                                  "--expert-model-parallel-size",
                                                  "4"};

}  // namespace tessera::cli
