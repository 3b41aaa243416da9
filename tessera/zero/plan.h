#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/nn/unit.h"
#include "tessera/zero/data_groups.h"
#include "tessera/zero/model_axes.h"

namespace tessera::zero {

using Parts = std::shared_ptr<const std::vector<std::size_t>>;

// [Note: shards] Each parameter alone is cut, as [Note: shards of a parameter] in core/shard.h
// says. So what a rank owns depends on neither stage nor buckets nor units, and sums over shards
// (the norm) come out the same for all of them. In a flat buffer a parameter takes N shards, of
// which its elements are the first ones; where a rank keeps only its own, one.

// A parameter, once, however many names it has.
struct Param {
  std::string name;
  at::Tensor tensor;  // the module's own
  ParamPolicy policy;
  std::int64_t numel = 0;
  std::vector<std::int64_t> sizes, strides;  // as the model sees it; dense
  std::int64_t shard = 0;                    // elements that each rank owns
  int space = 0;
  int unit = 0;
  std::int64_t offset = 0;  // of its first shard in the space's flat buffer; where a rank keeps
                            // only its own shards: at offset / N
  int bucket = -1;          // where its gradient travels; -1 if it is frozen
  int model_chunk = 0;      // [Note: model chunks] in options.h
};

// Parameters that can travel together: of one type, with or without a gradient, and sharded over
// the same ranks.
struct Space {
  explicit Space(DataGroups owners) : groups(std::move(owners)) {}

  DataGroups groups;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType grad_dtype = at::kFloat;
  at::ScalarType travel_dtype = at::kFloat;  // of gradients on their way
  c10::Device device{c10::kCPU};
  bool trainable = true;
  bool master = false;      // the optimizer updates an fp32 copy
  std::int64_t size = 0;    // elements of a flat buffer, padding included
  std::vector<int> params;  // in the order of their offsets

  int ranks() const { return groups.shard.size(); }  // that own a shard of each parameter
  std::string describe() const;
};

// A stretch of a space, of whole parameters.
struct Range {
  int space = 0;
  std::int64_t begin = 0, end = 0;
  std::vector<int> params;
  Parts parts;        // elements of each parameter, padding included
  std::string label;  // in messages
};

// What is gathered together. Unit 0 is the root: all parameters that no declared unit has.
struct UnitPlan {
  std::string name;
  nn::UnitBase* hook = nullptr;  // null for the root
  std::vector<Range> ranges;     // one per space it has parameters in
  std::vector<int> params;
};

// What one collective carries in backward, in the order in which all ranks start them.
struct Bucket {
  Range range;
  std::int64_t bytes = 0;
  int model_chunk = 0;
};

// Places of all parameters and gradients in buffers, units and buckets: a pure function of the
// model, the options and the sizes of the groups, so that all ranks have the same.
struct Plan {
  std::vector<Param> params;  // in declaration order
  std::vector<Space> spaces;
  std::vector<UnitPlan> units;
  std::vector<Bucket> buckets;
  int model_chunks = 1;

  const Space& space_of(const Param& param) const {
    return spaces[static_cast<std::size_t>(param.space)];
  }
  const Space& space_of(const Range& range) const {
    return spaces[static_cast<std::size_t>(range.space)];
  }
  // The elements of a parameter in this rank's shard, and where that begins in a buffer of whole
  // parameters, or of this rank's shards alone.
  ShardRange own_shard(const Param& param) const;
  std::int64_t own_offset(const Param& param, bool shards_only) const {
    return shards_only ? param.offset / space_of(param).ranks()
                       : param.offset + own_shard(param).begin;
  }

  // With padding.
  std::int64_t param_bytes(bool frozen) const;  // those that never change too?
  std::int64_t grad_bytes() const;              // as they travel
};

Plan make_plan(torch::nn::Module& model, const EngineOptions& options, const DataGroups& groups);

// A parameter's own shape over a flat buffer of its space (or of a range that begins at `base`).
at::Tensor view_of(const Param& param, const at::Tensor& flat, std::int64_t base = 0);

// The elements of `param` that are in shard `rank`: how many, and where in the parameter.
ShardRange shard_of(const Param& param, int rank);

}  // namespace tessera::zero
