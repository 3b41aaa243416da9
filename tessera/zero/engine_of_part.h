// Engines of one part of a model that is cut over ranks: the types that ParallelModel and pipeline
// executors pass to an Engine. Ordinary programs need none of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/core/param_spec.h"
#include "tessera/zero/options.h"

namespace tessera::zero {

class Engine;

// [Note: data groups] Groups of ranks that train the same parameters on different data. Stages 1 to
// 3 shard state over `shard`; the ranks of `replicate` own the same shard. Gradients are summed
// over `all`: each rank of `shard` gets the sum of its shard within that group, which is then
// summed over `replicate` ([Note: hybrid sums]). Gradient divisors, norms, losses and comparisons
// of ranks use `all`. Without replicas, `shard` is `all` and `replicate` has one rank.
struct DataGroups {
  // Every rank of `group` owns a shard.
  explicit DataGroups(comm::Group group) : all(std::move(group)), shard(all) {}
  // kTokenAxes and kShardAxes of a mesh. Collective over its world if these are several axes.
  explicit DataGroups(const comm::Mesh& mesh)
      : all(mesh.group(kTokenAxes)),
        shard(mesh.group(kShardAxes)),
        replicate(mesh.group(Axis::dp_replicate)) {}
  // The groups of parameters of experts: [Note: expert ranks]. Collective as above.
  static DataGroups of_experts(const comm::Mesh& mesh) {
    DataGroups groups(mesh.expert_group(kTokenAxes));
    groups.shard = mesh.expert_group(kShardAxes);
    groups.replicate = mesh.group(Axis::dp_replicate);
    return groups;
  }

  // Returns true if there is more than one replica.
  bool hybrid() const { return replicate.size() > 1; }

  comm::Group all;
  comm::Group shard;
  comm::Group replicate = {};
};

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
  // Groups of the parameters of experts, which other ranks do not have. Null: none has.
  std::shared_ptr<const DataGroups> expert_groups = nullptr;
  // Returns true for these parameters. Null: there are none.
  std::function<bool(const std::string&)> of_expert = nullptr;
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

// One backward pass of a model chunk in a pipeline.
struct BackwardPass {
  int model_chunk = 0;  // [Note: model chunks]
  // Some gradients are computed later, outside autograd. finish_pass() then ends the pass.
  bool deferred = false;
  // True: backward of one forward while other forwards are pending, as in 1F1B. False: backward of
  // all forwards since the last backward.
  bool of_one_forward = false;
};

// Interface of an engine for pipeline executors. Valid while its engine exists.
class EnginePipeline {
 public:
  // Made by Engine::pipeline().
  explicit EnginePipeline(Engine& engine) : engine_(engine) {}
  // Runs backward from any output with its gradient, or from the loss if `gradient` is undefined.
  // A gradient computed from a loss of this engine's global batch is already scaled.
  void backward(const at::Tensor& output, const at::Tensor& gradient, const BackwardPass& pass);
  // Ends a deferred pass of the model chunk, with the gradients added to `.grad` since then.
  void finish_pass(int model_chunk);
  // Returns the factor of all gradients on the device, [Note: loss scaling]; undefined: 1.
  at::Tensor loss_scale() const;

 private:
  Engine& engine_;
};

}  // namespace tessera::zero
