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

// The state of an engine as checkpoints take it: which elements of the whole model, and where they
// lie. Views of the engine's memory, but for what lies strided on a device, of which it is a copy.
struct StateToSave {
  std::vector<ParamSpec> specs;  // of all that this rank has, buffers too
  std::vector<checkpoint::Shard> shards;
  std::vector<at::Tensor> kept;  // as long as they are used
};
// `frozen`: parameters that are not trained too.
StateToSave state_to_save(const Checkpointable& what, bool frozen = true);

// What this rank has of frozen parameters and no rank before it, as elements of the whole model.
struct FrozenShard {
  std::string param;
  at::Tensor values;  // flat
  std::vector<Run> runs;
};
std::vector<FrozenShard> frozen_shards(const Checkpointable& what);

struct StateToLoad {
  std::vector<ParamSpec> specs;
  std::vector<checkpoint::WantedShard> shards;
  std::vector<at::Tensor> kept;
  std::vector<std::pair<at::Tensor, at::Tensor>>
      copies;  // to the first, from the second, at the end
};
// `wanted`: whether a shard is to be loaded; the others stay as they are. `frozen`: as above;
// without them, they stay as they are.
StateToLoad state_to_load(const Checkpointable& what,
                          const std::function<bool(const zero::StateShard&)>& wanted,
                          bool frozen = true);

// Of the elements that `runs` give of the rank's parameter (row-major), those of the shard, as they
// lie in memory.
std::vector<Run> runs_of(const zero::StateShard& shard, const std::vector<Run>& runs);
// Host memory as a tensor like `values`, to copy from or to some of it.
at::Tensor on_host(const at::Tensor& values, std::int64_t count, const std::byte* memory);

// How the ranks of a group talk about a checkpoint.
checkpoint::Team team_of(const comm::Group& group);
// What saving and loading hold for themselves is charged to the engine's ledger: no tensor shows
// it.
checkpoint::Charge charge_of(const zero::Engine& engine);

// [Note: counts] How often the optimizer has updated the parameters, as texts beside the program's
// own: "updates" has the steps, and "updates/NAME" the count of a parameter that missed some. In
// fp16 also the loss scale and the steps since it was changed.
void put_counts(Extra& extra, const zero::StepCounts& counts);
// And takes them out. Throws DataError, naming `where`.
zero::StepCounts take_counts(Extra& extra, const std::string& where);
// Throws UsageError for a key that is one of these.
void check_keys(const Extra& extra);

}  // namespace tessera::parallel
