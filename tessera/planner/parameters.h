#pragma once

#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera::planner {

// The parameters of Tessera's models (GPT and Llama) in the order of declaration, and how tp ranks
// share them: the rows of what the ranks take apart (qkv, fc, embedding, head), the columns of what
// brings them together again (proj, proj2).
std::vector<ParamSpec> model_params(const ModelShape& shape, int tp);

// Those of a part of the model: layers [first, last), with or without the embedding and the head.
// A head that is the embedding has a copy of it where the embedding is not.
struct ModelPart {
  std::int64_t first_layer = 0, last_layer = 0;
  bool embedding = true, head = true;
};
std::vector<ParamSpec> model_params(const ModelShape& shape, int tp, const ModelPart& part);
// Returns the parameters of the adapters in a part of the model, in the order of its blocks.
std::vector<ParamSpec> adapter_params(const ModelShape& shape, const ModelPart& part);
// Returns the parameters with gradients: those of the adapters if there are any, else all.
std::vector<ParamSpec> trained_params(const ModelShape& shape, int tp, const ModelPart& part);

// How many layers each stage of a pipeline gets, as --split says: "even" (what does not divide goes
// to the first stages), "work" (the stage that multiplies most does as little as can be; the head
// counts), or so many by hand, "3,3,2". Throws UsageError.
std::vector<int> layers_of_stages(const ModelShape& shape, int stages,
                                  const std::string& split = "even");

// A stage of a pipeline whose stages have so many layers: the embedding lies on the first one and
// the head on the last.
ModelPart part_of_stage(const std::vector<int>& layers_of_stages, int stage);

}  // namespace tessera::planner
