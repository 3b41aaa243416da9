#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/planner/layer_program.h"
#include "tessera/planner/run_config.h"

namespace tessera::planner {

// [Note: buckets of a step] Gradient buckets of a chunk, in the order in which their collectives
// start. A bucket holds whole parameters, as the engine fills it (zero/plan.cpp): it is closed by
// the parameter that makes it large enough ([Note: bucket size]), so small parameters share a
// bucket and a matrix is never split, even if it exceeds the bucket size. Tessera's engine begins
// with the last block and puts parameters outside blocks at the end ([Note: placement]). Other
// software takes all parameters from the last to the first, the head before the blocks.
struct StepBuckets {
  // Size shared by several equal buckets.
  struct Size {
    double bytes = 0;  // bytes sent
    int calls = 1;     // collectives per entry; more than 1 if there are too many buckets to list
    int count = 0;     // number of buckets of this size
    bool of_experts = false;  // holds parameters of experts only
  };
  std::vector<Size> sizes;             // distinct sizes; few, because layers are equal
  std::vector<std::uint16_t> size_of;  // index into `sizes` of each bucket
  std::vector<double> ready;           // fraction of the chunk's backward after which each is full

  int count() const { return static_cast<int>(size_of.size()); }
  int calls() const;
};

// Seconds of a chunk's backward: of the head, of each layer, of each layer without experts in a
// model that has others, and in total.
struct BackwardParts {
  double head = 0, layer = 0, dense = 0, all = 0;
};

// Bytes of the gradients that a rank sends along dp, for each parameter. All layers of a model are
// equal, so only one is listed, or one with and one without experts.
class GradSizes {
 public:
  // `resolved` must outlive this object.
  GradSizes(const RunConfig& resolved, const Programs& programs);

  // Returns the size in bytes at which a bucket is closed on a rank with these chunks.
  double limit(const std::vector<StageLayers>& chunks) const;
  // Returns the buckets of a chunk, at most 1024 entries.
  StepBuckets fill(const StageLayers& chunk, double limit, const BackwardParts& backward) const;

 private:
  struct Grad {
    double bytes = 0;
    bool of_expert = false;  // in other buckets, with expert parallelism
  };
  using Grads = std::vector<Grad>;

  void add(Grads& to, std::int64_t elements, bool of_expert) const;
  double bytes(const StageLayers& chunk) const;

  const RunConfig& q_;
  // In the order of declaration. `copy_`: a tied head's copy of the embedding on ranks without the
  // embedding.
  Grads layer_, dense_, embedding_, copy_, head_;
};

}  // namespace tessera::planner
