#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/planner/question.h"

namespace tessera::planner {

// [Note: buckets of a step] What the collectives of a chunk's gradients carry, in the order in
// which they start. A bucket holds whole parameters, as the engine fills it (zero/plan.cpp): it is
// closed by the parameter that makes it large enough, [Note: bucket size], so that small ones
// travel together and a matrix is never cut, however small a bucket is asked for. Tessera's engine
// begins with the last block and puts what is in no block at the end, [Note: placement]; others
// take all parameters from the last to the first, the head before the blocks.
struct StepBuckets {
  // Of some buckets, which are alike.
  struct Size {
    double bytes = 0;  // as they travel
    int calls = 1;     // collectives that it stands for: more where buckets are too many to list
    int count = 0;     // how many buckets have it
  };
  std::vector<Size> sizes;             // those that differ: layers are alike, so they are few
  std::vector<std::uint16_t> size_of;  // which of these each bucket has
  std::vector<double> ready;           // after what share of the chunk's backward each is full

  int count() const { return static_cast<int>(size_of.size()); }
  int calls() const;
};

// Of a chunk's backward, in seconds: what the head takes, each layer, and all of it.
struct BackwardParts {
  double head = 0, layer = 0, all = 0;
};

// The gradients that a rank sends along dp, parameter by parameter, as bytes. All layers of a model
// are alike, so one is listed, whatever the rank holds of them.
class GradSizes {
 public:
  // Of a rank of this run; the question has to outlive it.
  explicit GradSizes(const Question& settled);

  // How large a bucket has to be to be closed on a rank with these chunks.
  double limit(const std::vector<StageShare>& chunks) const;
  // At most 1024 entries.
  StepBuckets fill(const StageShare& chunk, double limit, const BackwardParts& backward) const;

 private:
  struct Grad {
    double whole = 0;   // what a bucket is filled with
    double travel = 0;  // what it sends of that: less of a matrix in low rank
  };
  using Grads = std::vector<Grad>;

  void add(Grads& to, std::int64_t rows, std::int64_t columns = 0) const;
  void add_model(const ModelShape& model);
  void add_adapters(const ModelShape& model);
  double bytes(const StageShare& chunk) const;

  const Question& q_;
  // In the order of declaration. A head that is the embedding has a copy of it where the embedding
  // is not.
  Grads layer_, embedding_, copy_, head_;
};

}  // namespace tessera::planner
