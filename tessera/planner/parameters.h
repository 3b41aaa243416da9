#pragma once

#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera::planner {

// Returns the parameters of Tessera's models (GPT and Llama) in the order of declaration, with
// their tensor-parallel sharding: by rows for column-parallel linears (qkv, fc), embedding and
// head; by columns for row-parallel linears (proj, proj2).
std::vector<ParamSpec> model_params(const ModelShape& shape, int tp);

// Part of a model: layers [first, last), with or without the embedding and the head. A tied head
// without the embedding has a copy of the table.
struct ModelPart {
  std::int64_t first_layer = 0, last_layer = 0;
  bool embedding = true, head = true;
};
// Position of a rank among those that share the experts of a layer: [Note: expert ranks]. `rank`
// -1: one with the most experts.
struct ExpertRank {
  int ranks = 1, rank = 0;
};
// A rank of ep has only the parameters of its own experts, "blocks.3.experts.7.fc.weight", which
// have ParamSpec::of_expert set.
std::vector<ParamSpec> model_params(const ModelShape& shape, int tp, const ModelPart& part,
                                    const ExpertRank& experts = {});
// Returns the parameters of the adapters in a part of the model, in the order of its blocks.
std::vector<ParamSpec> adapter_params(const ModelShape& shape, const ModelPart& part);
// Returns the parameters with gradients: those of the adapters if there are any, otherwise all.
std::vector<ParamSpec> trained_params(const ModelShape& shape, int tp, const ModelPart& part,
                                      const ExpertRank& experts = {});

// Returns the number of layers of each pipeline stage for a --split: "even" (the first stages take
// the remainder), "work" (minimizes the work of the busiest stage, including the head), or explicit
// counts such as "3,3,2". Throws UsageError for invalid counts.
std::vector<int> layers_of_stages(const ModelShape& shape, int stages,
                                  const std::string& split = "even");

// Returns the part of the model on a stage. The embedding is on the first stage and the head on the
// last.
ModelPart part_of_stage(const std::vector<int>& layers_of_stages, int stage);

}  // namespace tessera::planner
