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

// Layers [first, last) of the list.
struct Stretch {
  std::size_t first = 0, last = 0;
};

// How a pipeline cuts a list of layers into stages.
class Cut {
 public:
  // Throws UsageError for what cannot be cut so.
  Cut(const std::vector<Layer>& layers, int pp, const ParallelOptions& options);

  const schedule::Schedule& schedule() const { return schedule_; }  // of one stage without pipeline
  Stretch layers_of(int stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  int stage_of(std::size_t layer) const;

 private:
  schedule::Schedule schedule_;
  std::vector<Stretch> stages_;
};

// The layer and the parameter of it that a tied parameter is. That one is tied to nothing itself.
struct TieOwner {
  std::size_t layer = 0;
  std::string param;

  friend bool operator==(const TieOwner&, const TieOwner&) = default;
};
// Returns the owner of parameter `param` in `tied` of layer `who`, through ties of ties. Throws
// UsageError if a tie names no layer before its own.
TieOwner tie_owner(const std::vector<Layer>& layers, std::size_t who, const std::string& param);
// What a parameter of a layer is called in the whole model.
std::string whole_name(const Layer& layer, const std::string& param);

// The ranks of a pipeline that have a copy of a parameter each; alone on a rank that has none.
struct TieGroup {
  std::string param;
  comm::Group group;
};
// Collective over `pp`: those that this rank is in.
std::vector<TieGroup> tie_groups(const std::vector<Layer>& layers, const Cut& cut,
                                 const comm::Group& pp);

// Traffic of this rank so far, by axis.
PerAxis<comm::TrafficCounts> axis_traffic(const comm::Mesh& mesh);

// Groups of data-parallel ranks, with their names in reports.
std::vector<std::pair<const char*, comm::Group>> data_groups(const comm::Mesh& mesh);

// Collective: the ranks of this replica, alone if tp and pp are 1.
comm::Group replica_group(const comm::Mesh& mesh);

// "chunk1.blocks.3.qkv.weight": how a rank with several chunks calls a parameter.
std::string chunk_name(int chunk);
int chunk_of(const std::string& raw);

// Collective: rank `owner`'s tensor, on all ranks of the group; others give none.
at::Tensor tell_all(const comm::Group& group, int owner, const at::Tensor& tensor,
                    c10::Device device);
// Collective: of the hashes of all ranks, in their order.
std::uint64_t hash_of_replica(const comm::Group& group, std::uint64_t own);

}  // namespace tessera::parallel
