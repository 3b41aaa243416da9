#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/param_spec.h"
#include "tessera/zero/options.h"

namespace tessera::zero {

// [Note: model axes] If the model itself is cut over ranks, by tensor or pipeline parallelism,
// every rank has an engine for its own part, whose group is the ranks with the same part. The norm
// of the gradient and the loss, which are global, are then sums over the parts too.
struct ModelAxes {
  comm::Group group;        // ranks that hold one copy of the model; one rank: it is whole
  bool counts_loss = true;  // true on one of the ranks that compute the same loss
  // Returns the elements of a parameter that this rank counts in the norm, in memory order.
  // Elements that several ranks hold are counted by one. Null: all.
  std::function<std::vector<Run>(const std::string&)> counted = nullptr;
  // Returns true if tensor parallelism cuts the parameter. Null: none is cut.
  std::function<bool(const std::string&)> cut = nullptr;
  // Parameters that several parts have a copy of (an embedding that is also the head): their
  // gradients are added up over the group, after they have been reduced.
  struct Tie {
    std::string param;
    comm::Group group;
  };
  std::vector<Tie> ties = {};
  // [Note: model chunks] The chunks of this rank's part that run backward by themselves (virtual
  // stages of a pipeline), by the name of a parameter, from 0. Buckets do not cross them. Null:
  // one.
  std::function<int(const std::string&)> model_chunk = nullptr;
  int model_chunks = 1;  // least number of chunks: some may have no parameters
  // Returns the name that a parameter of this rank's module has in the whole model. Null: the same.
  std::function<std::string(const std::string&)> name = nullptr;
};

// Options of an engine with its place in a model that is cut over ranks.
struct EngineOptions : Options {
  ModelAxes axes;
};

}  // namespace tessera::zero
