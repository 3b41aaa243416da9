#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/param_spec.h"
#include "tessera/zero/options.h"

namespace tessera::zero {

// [Note: model axes] Position of an engine in a model that is cut over ranks by tensor or pipeline
// parallelism. Every rank has an engine for its own part, whose group is the ranks with the same
// part. The gradient norm and the loss are global, so they are also summed over the parts.
struct ModelAxes {
  comm::Group group;        // ranks that together hold one copy of the model; one rank: not cut
  bool counts_loss = true;  // true on one of the ranks that compute the same loss
  // Returns the elements of a parameter that this rank counts in the norm, in memory order.
  // Elements held by several ranks are counted by one of them. Null: all elements.
  std::function<std::vector<Run>(const std::string&)> counted = nullptr;
  // Returns true if tensor parallelism cuts the parameter. Null: none is cut.
  std::function<bool(const std::string&)> cut = nullptr;
  // Parameter that several parts hold a copy of, such as an embedding that is also the head. Its
  // gradients are summed over the group after they have been reduced.
  struct Tie {
    std::string param;
    comm::Group group;
  };
  std::vector<Tie> ties = {};
  // [Note: model chunks] Chunks of this rank's part run backward separately (virtual stages of a
  // pipeline). Returns the chunk of a parameter by its name, from 0. Buckets do not cross chunks.
  // Null: one chunk.
  std::function<int(const std::string&)> model_chunk = nullptr;
  int model_chunks = 1;  // minimum number of chunks: some may have no parameters
  // Returns the name that a parameter of this rank's module has in the whole model. Null: the same.
  std::function<std::string(const std::string&)> name = nullptr;
};

// Options of an engine, with its position in a model that is cut over ranks.
struct EngineOptions : Options {
  ModelAxes axes;
};

}  // namespace tessera::zero
