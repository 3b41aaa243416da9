#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/parallel/layer.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/start.h"

// [Note: consistency] Ranks of a mesh build one model together. If they were given different
// layers, options or data, collectives would wait until the timeout, or training would continue
// with wrong numbers. These checks compare hashes, and texts only if hashes differ, so that every
// rank throws the same UsageError with the first difference and the ranks that have it. They are
// collective, and do nothing if the other ranks are simulated.
namespace tessera::parallel {

// Compares the list of layers and the options that shape the model, over the mesh, before anything
// is made.
void expect_same_list(const std::vector<Layer>& layers, const comm::Mesh& mesh,
                      const ParallelOptions& options);

// Compares the parameters of ranks of one pipeline stage, and all copies of tied parameters, over
// the mesh, after this rank has made its layers. `problem`: reason that it could not make them; ""
// if it could.
void expect_same_layers(const comm::Mesh& mesh, const std::string& problem, const Start& start);

// Throws UsageError if a module of the layer uses the dropout of torch, which draws different
// random numbers on each of `tp` tensor-parallel ranks, if there are several.
void reject_torch_dropout(const Layer& layer, const torch::nn::Module& module, int tp);
// Throws UsageError if a module of the layer mixes the tokens of a row, of which each
// of `cp` context-parallel ranks, if there are several, has only a part.
void reject_token_mixing(const Layer& layer, const torch::nn::Module& module, int cp);
// Returns true if a module is a MeshDropout with its own rate above 0, independent of
// ParallelOptions::dropout.
bool has_own_dropout(const torch::nn::Module& module);

// Tensors with a name for messages.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// Returns this rank's shards of the parameters that are whole on each tensor-parallel rank.
NamedTensors replicated_params(const Start& start, zero::Engine& engine);

// Data of one rank that must be equal on others: inputs on tensor- and context-parallel ranks,
// parameters on tensor-parallel ones.
struct Replicated {
  NamedTensors inputs, params;
  c10::Device device = c10::kCPU;
  std::int64_t steps = 0;  // number of steps so far, for messages
};
// Compares parameters over `model`, the ranks along tp and pp, and inputs over `sharing`, those
// along cp too. Throws UsageError if inputs differ. If
// parameters differ, throws on the CPU and warns on a GPU, whose kernels may sum in a different
// order on each rank.
void expect_replicated(const comm::Mesh& mesh, const comm::Group& model, const comm::Group& sharing,
                       const Replicated& own);

}  // namespace tessera::parallel
