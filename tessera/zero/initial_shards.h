#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "tessera/comm/mesh.h"
#include "tessera/zero/options.h"

namespace tessera::zero {

// Initial values for a model that fits into memory only when sharded, and whose modules initialize
// their parameters when constructed. Construct one layer at a time; each rank keeps only its
// shards.
//   zero::InitialShards shards(group);
//   for (int i = 0; i < layers; ++i) {
//     Block block(config);
//     shards.take(*block, "blocks." + std::to_string(i));  // frees its parameters' memory
//     model->blocks->push_back(block);
//   }
//   DataParallel train(model, group, {.stage = 3, .initial = shards.source()});
// Until the engine has used it, a shard takes 4 bytes per element in addition to the engine's
// state.
class InitialShards {
 public:
  // `broadcast`: all ranks get the values of rank 0. Otherwise all ranks must have equal values.
  explicit InitialShards(comm::Group group, bool broadcast = true);
  // For an engine over the data-parallel axes of a mesh.
  explicit InitialShards(const comm::Mesh& mesh, bool broadcast = true);

  // Collective. Keeps this rank's shards of the module's parameters, and frees the parameters.
  // `name`: name of the module in the model; empty if it is the model. Parameters shared with a
  // module taken before are skipped.
  void take(torch::nn::Module& module, const std::string& name = "");
  // Collective. The same for one parameter.
  void take_parameter(const std::string& name, const at::Tensor& param);

  // Returns the source for Options::initial. It gives each shard once, and frees it.
  InitialSource source() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::zero
