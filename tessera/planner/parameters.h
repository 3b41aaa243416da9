#pragma once

#include <vector>

#include "tessera/core/param_spec.h"
#include "tessera/planner/model_shape.h"

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

// Stage s of a pipeline: layers that do not divide go to the first stages, the embedding lies on
// the first one and the head on the last.
ModelPart part_of_stage(const ModelShape& shape, int stages, int stage);

}  // namespace tessera::planner
