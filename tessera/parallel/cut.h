#pragma once

#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/parallel/layer.h"
#include "tessera/schedule/schedule.h"

namespace tessera {
struct ParallelOptions;
}

namespace tessera::parallel {

// Layers [first, last) of the list, owned by one pipeline stage.
struct StageLayers {
  std::size_t first = 0, last = 0;
};

// Division of a list of layers into the stages of a pipeline.
class PipelineSplit {
 public:
  // Throws UsageError if the layers cannot be divided with these options.
  PipelineSplit(const std::vector<Layer>& layers, int pp, const ParallelOptions& options);

  const schedule::Schedule& schedule() const { return schedule_; }  // one stage without a pipeline
  StageLayers layers_of(int stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  int stage_of(std::size_t layer) const;

 private:
  schedule::Schedule schedule_;
  std::vector<StageLayers> stages_;
};

// Layer and parameter that a tied parameter refers to. The owner itself is not tied.
struct TieOwner {
  std::size_t layer = 0;
  std::string param;

  friend bool operator==(const TieOwner&, const TieOwner&) = default;
};
// Returns the owner of parameter `param` in `tied` of layer `who`, following ties of ties. Throws
// UsageError if a tie does not name an earlier layer.
TieOwner tie_owner(const std::vector<Layer>& layers, std::size_t who, const std::string& param);
// Returns the name of a layer's parameter in the whole model.
std::string whole_name(const Layer& layer, const std::string& param);

// Pipeline ranks that each have a copy of a parameter.
struct TieGroup {
  std::string param;
  comm::Group group;
};
// Collective over `pp`. Returns the groups that include this rank.
std::vector<TieGroup> tie_groups(const std::vector<Layer>& layers, const PipelineSplit& cut,
                                 const comm::Group& pp);

// Returns the ranks that together hold every parameter, once each: `model`, the ranks of the parts
// of a model, and with expert parallelism those of the other experts. Collective over the mesh.
comm::Group whole_model(const comm::Mesh& mesh, const comm::Group& model);
// Returns the reason that steps on this mesh cannot run as a graph; "" if there is none. `draws`:
// they draw random numbers.
std::string graph_problem(const Axes& axes, bool draws, bool waits_for_experts);

// Returns the traffic of this rank so far in the groups of a mesh, by axis.
PerAxis<comm::TrafficCounts> axis_traffic(const comm::Mesh& mesh);

// Returns the groups of data-parallel ranks, with their names in reports.
std::vector<std::pair<const char*, comm::Group>> data_groups(const comm::Mesh& mesh);

// Collective. Returns the group of the ranks of this replica; one rank if tp and pp are 1.
comm::Group replica_group(const comm::Mesh& mesh);

// Prefix of parameter names on a rank with several chunks, as in "chunk1.blocks.3.qkv.weight", and
// its inverse.
std::string chunk_name(int chunk);
int chunk_of(const std::string& raw);

// Collective. Returns the `count` tensors of rank `owner` on all ranks of the group; others pass
// none.
std::vector<at::Tensor> broadcast_tensors(const comm::Group& group, int owner,
                                          const std::vector<at::Tensor>& tensors, std::size_t count,
                                          c10::Device device);

// Collective. Returns a hash of the hashes of all ranks, in rank order.
std::uint64_t hash_of_replica(const comm::Group& group, std::uint64_t own);

}  // namespace tessera::parallel
