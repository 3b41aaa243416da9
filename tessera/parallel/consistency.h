#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/parallel/layer.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/start.h"

// [Note: consistency] Ranks of a mesh build one model together. Where they were given different
// layers, options or data, collectives would wait for each other until the timeout, or training
// would go on with wrong numbers. These checks compare hashes, and texts only where hashes differ,
// so that every rank throws the same UsageError with the first difference and the ranks that have
// it. Collective; nothing is compared where the other ranks are simulated.
namespace tessera::parallel {

// Over the mesh, before anything is made: the list of layers and the options that shape the model.
void expect_same_list(const std::vector<Layer>& layers, const comm::Mesh& mesh,
                      const ParallelOptions& options);

// Over the mesh, when this rank has made its layers. `problem`: why it could not; "" if it could.
// Ranks of one pipeline stage have the same parameters, and all copies of a tied one are alike.
void expect_same_layers(const comm::Mesh& mesh, const std::string& problem, const Start& start);

// Throws UsageError if a module of the layer draws random numbers of each rank's own in training:
// tensor-parallel ranks would compute with different masks.
void refuse_rank_masks(const Layer& layer, const torch::nn::Module& module, int tp);
// Returns whether a module is a MeshDropout that drops something whatever ParallelOptions::dropout
// is.
bool has_own_dropout(const torch::nn::Module& module);

// Tensors with a name for messages.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// Parameters that each tensor-parallel rank has whole: the shards that this rank owns.
NamedTensors replicated_params(const Start& start, zero::Engine& engine);

// Data of one tensor-parallel rank that the others must have too.
struct Replicated {
  NamedTensors inputs, params;
  c10::Device device = c10::kCPU;
  std::int64_t steps = 0;  // that were made, for messages
};
// Over the ranks of a replica, `model`. Throws UsageError where inputs differ. Where parameters
// differ it throws on the CPU and warns on a GPU, whose kernels may add in another order on each
// rank.
void expect_replicated(const comm::Mesh& mesh, const comm::Group& model, const Replicated& own);

}  // namespace tessera::parallel
