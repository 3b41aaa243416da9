#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>

#include "tessera/zero/data_groups.h"
#include "tessera/zero/initial_source.h"

namespace tessera::zero {

// For models that fit only sharded, of modules that fill their parameters when they are made: make
// one layer after the other, and let each rank keep its shards of it at once.
//   zero::InitialShards shards(group);
//   for (int i = 0; i < layers; ++i) {
//     Block block(config);
//     shards.take(*block, "blocks." + std::to_string(i));  // its parameters have no memory now
//     model->blocks->push_back(block);
//   }
//   DataParallel train(model, group, {.stage = 3, .initial = shards.source()});
// Until the engine has taken it, a shard takes 4 bytes an element besides the engine's own state.
class InitialShards {
 public:
  // `broadcast`: rank 0's values are everybody's. Otherwise all ranks must make the same.
  explicit InitialShards(comm::Group group, bool broadcast = true);
  // For an engine over the data-parallel axes of a mesh.
  explicit InitialShards(const comm::Mesh& mesh, bool broadcast = true);

  // Collective. `name`: what the module will be called in the model; empty: it is the model. What a
  // module taken before shares with this one is skipped.
  void take(torch::nn::Module& module, const std::string& name = "");
  // Collective. The same for one parameter.
  void take_parameter(const std::string& name, const at::Tensor& param);

  // Gives each shard once, and frees it.
  InitialSource source() const;

 private:
  const DataGroups groups_;
  const bool broadcast_;
  std::shared_ptr<std::map<std::string, at::Tensor>> shards_;
};

}  // namespace tessera::zero
