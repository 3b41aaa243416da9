#pragma once

#include <cstdint>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/grad_compression.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/plan.h"

namespace tessera::zero {

// [Note: PowerSGD] Of each matrix M = gradient + error of a rank (parameters of more dims: the
// outermost in memory by the rest) two thin factors travel instead of M:
//   P = orthonormal(Σ M·Q),   Q' = Σ Mᵀ·P,   result P·Q'ᵀ,   error = M − P·(Mᵀ·P)ᵀ of this rank.
// So results and the errors of all ranks together are all gradients that ever were. The next step
// begins with Q'. P and Q' are the same bits on every rank, and so is what is computed from them.
// What is not compressed travels with the P of its bucket. Between two steps the errors and Q' are
// all that there is to know: a direction that has to be drawn depends on nothing else.
class LowRankGradients {
 public:
  // Collective. `grads`: the flat gradients, by space.
  LowRankGradients(const Plan& plan, const PowerSgd& how, std::uint64_t seed, comm::Group group,
                   const Buffers& buffers, const std::vector<Buffer>& grads);

  // Whether a bucket has a matrix that is compressed; the others are not of this class.
  bool has(int bucket) const {
    return !buckets_[static_cast<std::size_t>(bucket)].matrices.empty();
  }
  // The gradients of a bucket are complete. All ranks start the buckets in one order.
  void start(int bucket);
  // Those that were started have their sums when this returns.
  void finish(Stopwatch& waiting);
  // Errors and directions begin anew.
  void forget();
  // Of every matrix that is compressed: views.
  struct Kept {
    int param = 0;
    at::Tensor error;  // m × n, as the parameter lies in memory
    at::Tensor next;   // Q', n × r
  };
  std::vector<Kept> kept() const;
  // Of the buckets that it has.
  std::int64_t traveling_elements(int bucket) const;

 private:
  struct Matrix {
    at::Tensor grad, error;  // m × n
    at::Tensor left, right;  // m × r, n × r
    std::uint64_t stream = 0;
    int param = 0;
  };
  struct Plain {
    at::Tensor grad, place;
  };
  struct Compressed {  // a bucket
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

// Makes the columns of x (k × r, fp32) orthonormal, in fp64, one after the other. A column that is
// nothing but the ones before becomes zero, or, if `redraw` is given, random: the same for the same
// numbers here. Numbers that are not finite stay as they are, for the step to find.
struct Redraw {
  std::uint64_t seed = 0, stream = 0;
};
void orthonormalise(const at::Tensor& x, const Redraw* redraw);

}  // namespace tessera::zero
