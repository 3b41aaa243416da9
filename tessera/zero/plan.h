#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/nn/unit.h"
#include "tessera/zero/engine_of_part.h"

namespace tessera::zero {

using Parts = std::shared_ptr<const std::vector<std::size_t>>;

// [Note: shards] Each parameter is cut separately, as described in [Note: shards of a parameter] in
// core/shard.h. The shard that a rank owns therefore does not depend on stage, buckets or units,
// and neither do sums over shards (the norm). In a flat buffer a parameter takes N shards, with its
// elements first and padding last; in a buffer of one rank's shards it takes one.

// A parameter. It appears once, even if the model has several names for it.
struct Param {
  std::string name;
  at::Tensor tensor;  // the tensor of the module
  ParamPolicy policy;
  std::int64_t numel = 0;
  std::vector<std::int64_t> sizes, strides;  // in the model; dense
  std::int64_t shard = 0;                    // elements of one shard, padding included
  int space = 0;
  int unit = 0;
  std::int64_t offset = 0;  // in the flat buffer of its space; offset / N in a buffer of one rank's
                            // shards
  int bucket = -1;          // bucket of its gradient; -1 if it is frozen
  int model_chunk = 0;      // [Note: model chunks] in engine_of_part.h
};

// Parameters that can share a collective: of one type, all trained or all frozen, and sharded over
// the same ranks.
struct Space {
  explicit Space(DataGroups owners) : groups(std::move(owners)) {}

  bool of_experts = false;  // other ranks have other parameters: ModelAxes::of_expert

  DataGroups groups;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType grad_dtype = at::kFloat;
  at::ScalarType travel_dtype = at::kFloat;  // of gradients as sent
  c10::Device device{c10::kCPU};
  bool trainable = true;
  bool master = false;      // the optimizer updates an fp32 copy
  std::int64_t size = 0;    // elements of a flat buffer, padding included
  std::vector<int> params;  // in the order of their offsets

  int ranks() const { return groups.shard.size(); }  // number of shards of each parameter
  std::string describe() const;
};

// Range of a space that consists of whole parameters.
struct Range {
  int space = 0;
  std::int64_t begin = 0, end = 0;
  std::vector<int> params;
  Parts parts;        // elements of each parameter, padding included
  std::string label;  // for messages
};

// Parameters that are gathered together. Unit 0 is the root: all parameters outside declared units.
struct UnitPlan {
  std::string name;
  nn::UnitBase* hook = nullptr;  // null for the root
  std::vector<Range> ranges;     // one per space it has parameters in
  std::vector<int> params;
};

// Gradients that one collective reduces in backward. All ranks start buckets in the same order.
struct Bucket {
  Range range;
  std::int64_t bytes = 0;
  int model_chunk = 0;
};

// Positions of all parameters and gradients in buffers, units and buckets. A pure function of the
// model, the options and the sizes of the groups, so it is the same on all ranks.
struct Plan {
  std::vector<Param> params;  // in declaration order
  std::vector<Space> spaces;
  std::vector<UnitPlan> units;
  std::vector<Bucket> buckets;
  int model_chunks = 1;
  // Groups of the spaces of experts; null if there are none.
  std::shared_ptr<const DataGroups> expert_groups = nullptr;

  bool of_expert(std::size_t param) const { return space_of(params[param]).of_experts; }
  const Space& space_of(const Param& param) const {
    return spaces[static_cast<std::size_t>(param.space)];
  }
  const Space& space_of(const Range& range) const {
    return spaces[static_cast<std::size_t>(range.space)];
  }
  // Return the elements of a parameter in this rank's shard, and the offset of that shard in a
  // buffer of whole parameters, or of this rank's shards only.
  ShardRange own_shard(const Param& param) const;
  std::int64_t own_offset(const Param& param, bool shards_only) const {
    return shards_only ? param.offset / space_of(param).ranks()
                       : param.offset + own_shard(param).begin;
  }

  // Sizes including padding.
  std::int64_t param_bytes(bool frozen) const;  // `frozen`: count frozen parameters too
  std::int64_t grad_bytes() const;              // as sent
  std::int64_t shared_grad_bytes() const;       // the same without experts: equal on all ranks
};

Plan make_plan(torch::nn::Module& model, const EngineOptions& options, const DataGroups& groups);

// Returns a view of a flat buffer of the parameter's space (or of a range that begins at `base`) in
// the parameter's shape.
at::Tensor view_of(const Param& param, const at::Tensor& flat, std::int64_t base = 0);

// Returns the range of elements of `param` in shard `rank`.
ShardRange shard_of(const Param& param, int rank);

}  // namespace tessera::zero
