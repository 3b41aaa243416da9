#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/parallel/save.h"

namespace tessera::parallel {

// State of an engine for a checkpoint: elements of the whole model and their memory. Shards are
// views of the engine's memory, except for copies of tensors on a device that are not row-major.
struct StateToSave {
  std::vector<ParamSpec> specs;  // of this rank's parameters and buffers
  std::vector<checkpoint::Shard> shards;
  std::vector<at::Tensor> kept;  // keeps the memory of the shards alive
};
// `frozen`: include frozen parameters.
StateToSave state_to_save(const Checkpointable& what, bool frozen = true);

// Elements of a frozen parameter that this rank has and no earlier rank, in the whole model.
struct FrozenShard {
  std::string param;
  at::Tensor values;  // flat
  std::vector<Run> runs;
};
std::vector<FrozenShard> frozen_shards(const Checkpointable& what);

// State of an engine that a checkpoint overwrites.
struct StateToLoad {
  std::vector<ParamSpec> specs;
  std::vector<checkpoint::WantedShard> shards;
  std::vector<at::Tensor> kept;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // (to, from), made after loading
};
// `wanted`: returns true for shards to load; others are unchanged. `frozen`: load frozen
// parameters; if false, they are unchanged.
StateToLoad state_to_load(const Checkpointable& what,
                          const std::function<bool(const zero::StateShard&)>& wanted,
                          bool frozen = true);

// Returns the communication of the ranks of a group for checkpoints.
checkpoint::Team team_of(const comm::Group& group);
// Returns a function that charges temporary memory of saving and loading, which is not in tensors,
// to the engine's ledger.
checkpoint::Charge charge_of(const zero::Engine& engine);

// [Note: counts] Numbers of updates of the parameters, saved as texts next to the program's own
// extras: "updates" has the number of steps, and "updates/NAME" the count of a parameter that
// missed some steps. In fp16 also the loss scale and the number of steps since it changed. Adds
// them.
void put_counts(Extra& extra, const zero::StepCounts& counts);
// Removes and returns them. Throws DataError, which names `where`.
zero::StepCounts take_counts(Extra& extra, const std::string& where);
// Throws UsageError if `extra` has a reserved key.
void check_keys(const Extra& extra);

}  // namespace tessera::parallel
