#pragma once

#include <cstdint>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/grad_compression.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/plan.h"

namespace tessera::zero {

// [Note: PowerSGD] Low-rank reduction of gradients with error feedback. For each matrix M =
// gradient + error of a rank (parameters with more dims: the outermost dim in memory by the rest),
// two thin factors are sent instead of M:
//   P = orthonormal(Σ M·Q),   Q' = Σ Mᵀ·P,   result P·Q'ᵀ,   error = M − P·(Mᵀ·P)ᵀ of this rank.
// The sum of all results and of the current errors of all ranks equals the sum of all gradients.
// The next step uses Q' as Q. P and Q' have the same bits on every rank, and so does the result.
// Gradients that are not compressed are sent with the P of their bucket. The errors and Q' are the
// whole state between two steps: directions that must be redrawn depend only on seed and parameter.
class LowRankGradients {
 public:
  // Collective. `grads`: flat gradients, by space.
  LowRankGradients(const Plan& plan, const PowerSgd& how, std::uint64_t seed, comm::Group group,
                   const Buffers& buffers, const std::vector<Buffer>& grads);

  // Returns true if the bucket has a compressed matrix. Other buckets must not be passed below.
  bool has(int bucket) const {
    return !buckets_[static_cast<std::size_t>(bucket)].matrices.empty();
  }
  // Starts the reduction of a bucket whose gradients are complete. All ranks must start buckets in
  // the same order.
  void start(int bucket);
  // Waits until the gradients of all started buckets hold their sums.
  void finish(Stopwatch& waiting);
  // Resets errors and directions to zero.
  void forget();
  // State of one compressed matrix between two steps, as views.
  struct State {
    int param = 0;
    at::Tensor error;  // m × n, in the parameter's memory order
    at::Tensor next;   // Q', n × r
  };
  std::vector<State> states() const;
  // Returns the number of elements that are sent for a bucket.
  std::int64_t traveling_elements(int bucket) const;

 private:
  struct Matrix {
    at::Tensor grad, error;  // m × n
    at::Tensor left, right;  // m × r, n × r
    std::uint64_t stream = 0;
    int param = 0;
  };
  struct Plain {  // not compressed
    at::Tensor grad, place;
  };
  struct Compressed {  // a bucket with compressed matrices
    std::vector<Matrix> matrices;
    std::vector<Plain> plain;
    Buffer first, second, errors;
    std::string label;
    comm::Work work;
    bool started = false;
  };
  void lay_out(Compressed& bucket, const Bucket& plan, const Plan& all, const PowerSgd& how,
               const Buffers& buffers, const at::Tensor& grads);
  comm::Work all_reduce(const at::Tensor& x, const Compressed& bucket, const char* what) const;

  const comm::Group group_;
  const std::uint64_t seed_;
  std::vector<Compressed> buckets_;
};

// Makes the columns of x (k × r, fp32) orthonormal, in fp64, in order. A column that depends
// linearly on the columns before it becomes zero or, if `redraw` is given, random, as determined by
// seed and stream. If x has values that are not finite, x is unchanged, so that the step detects
// them.
struct Redraw {
  std::uint64_t seed = 0, stream = 0;
};
void orthonormalize(const at::Tensor& x, const Redraw* redraw);

}  // namespace tessera::zero
