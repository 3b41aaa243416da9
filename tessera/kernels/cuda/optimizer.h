#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/cuda/cuda.h"
#include "tessera/kernels/rules.h"

// [Note: a step on a GPU] The optimizer's work after the last backward pass, without the host:
//   sum_of_squares   of this rank's gradients; also its loss and which parameters have a gradient
//   add_sums         adds the sums of several ranks after they have exchanged them
//   decide           norm, clipping, finite or not; counts updates; the numbers of every parameter
//   decide_matrices  the numbers of matrices that Muon orthogonalizes between two updates
//   update           of all elements of a flat space
// Tables hold the addresses; they are built once. All structs are read and written on the device,
// so a captured graph contains no values of a particular step.
namespace tessera::kernels::cuda {

// Inputs that change from step to step, written by the host. One byte per parameter follows in
// memory: 1 if this rank has a gradient of it.
struct StepInput {
  double lr = 0;
  double clip_norm = 0;  // 0 disables clipping
  double weight_decay = 0;
  double factor = 1;  // factor of the loss: 1 / tokens
  float factor32 = 1;
  float unused = 0;
  double matrix_weight_decay = 0;  // of decide_matrices()
};

// Sums of one rank or of all ranks. The bytes of StepInput follow in memory; see sums_bytes().
struct StepSums {
  double squares = 0;
  double loss = 0;
};
constexpr std::size_t sums_bytes(std::size_t params) {
  return sizeof(StepSums) + (params + 7) / 8 * 8;
}

// State kept from step to step.
struct StepState {
  double loss_scale = 1;
  std::int64_t good_steps = 0;  // good steps since the last change of the scale
  std::int64_t steps = 0;       // steps that were not skipped
};

// Result of one step.
struct StepResult {
  double loss = 0;
  double norm = 0;        // before clipping, of the gradient without the loss scale
  double loss_scale = 1;  // used in this step
  double grad_scale = 1;  // factor of gradients in the update, from clipping and the loss scale
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
};

// [Note: loss scaling] Gradients in f16 underflow below 6e-8, so the loss is multiplied by a scale
// that is as large as possible. It starts at 2^16, doubles after kGoodSteps consecutive good steps,
// and is halved on overflow; the step that overflowed is skipped.
constexpr double kFirstLossScale = 65536;
constexpr std::int64_t kGoodSteps = 2000;
constexpr double kLargestLossScale = 0x1p24;

// Table entry of a parameter.
struct ParamInfo {
  double lr_scale = 1;
  std::int64_t decays = 1;
  std::uint64_t stream = 0;  // for stochastic rounding, [Note: noise] in kernels/optimizer.h
};
// Step of one parameter: the numbers of its rule's formula.
struct ParamStep {
  float numbers[12] = {};
  std::uint32_t active = 0;  // 0: the parameter is not updated
  std::uint32_t count = 0;   // number of updates, including this one
  std::uint64_t stream = 0;
};

// Piece of a gradient whose x² are summed in fp64. The order of additions depends only on how the
// gradient is cut into pieces.
struct SquarePiece {
  const void* x = nullptr;
  std::uint32_t count = 0;  // at most kSquarePiece
  DType type = DType::f32;
};
constexpr std::uint32_t kSquarePiece = 1u << 16;
// Writes the sums of this rank to `out`, of sums_bytes(params). partials: one number per piece.
// `used`: the bytes after StepInput. loss: null means 0.
void sum_of_squares(const SquarePiece* pieces, std::size_t count, double* partials,
                    const double* loss, const std::uint8_t* used, std::size_t params, void* out,
                    Stream stream);

// out = the sum of `ranks` rows of sums_bytes(params) bytes, added in that order; a parameter is
// used if any rank uses it. Without `counts_loss` the loss becomes 0. With params = 0 the used
// bytes of out do not change.
void add_sums(const void* rows, int ranks, std::size_t params, bool counts_loss, void* out,
              Stream stream);

// Inputs and outputs of decide().
struct Decision {
  const StepInput* input = nullptr;
  const void* sums = nullptr;
  std::size_t params = 0;
  const ParamInfo* infos = nullptr;
  bool scaled = false;  // [Note: loss scaling]
  StepState* state = nullptr;
  std::int64_t* updates = nullptr;  // one per parameter
  ParamStep* steps = nullptr;
  StepResult* result = nullptr;
};
void decide(const rules::Rule& rule, const Decision& what, Stream stream);

// Inputs and outputs of decide_matrices().
struct MatrixDecision {
  const StepInput* input = nullptr;
  const StepResult* result = nullptr;
  std::size_t params = 0;
  const ParamInfo* infos = nullptr;
  const ParamStep* decided = nullptr;  // result of decide(), of which active and count are read
  const double* scales = nullptr;      // rules::Descent::scale by parameter; 0: not a matrix
  ParamStep* momentum = nullptr;       // one per parameter
  ParamStep* descent = nullptr;
};
// Computes the steps of Muon's two rules for matrices, after decide().
void decide_matrices(const rules::Momentum& rule, const MatrixDecision& what, Stream stream);

// Contiguous piece of one parameter. Fast if 16-byte aligned.
struct UpdatePiece {
  const void* grad = nullptr;
  float* a = nullptr;  // states of the rule
  float* b = nullptr;
  float* master = nullptr;
  void* param = nullptr;
  std::uint64_t begin = 0;  // index of the first element in the whole parameter
  std::uint32_t count = 0;
  std::uint32_t index = 0;  // index of its ParamStep
};
constexpr std::uint32_t kUpdatePiece = 1u << 15;
// Storage of the parameters of a space: the variants of ParamShard in kernels/optimizer.h, and f16
// with a master copy.
struct UpdateTypes {
  DType param = DType::f32;
  DType grad = DType::f32;
  bool master = false;
  std::uint64_t seed = 0;  // for stochastic rounding
};
// Applies one step of a rule to all pieces in one pass over memory. The result for an element does
// not depend on how the parameter is cut.
void update(const rules::Rule& rule, const UpdateTypes& types, const UpdatePiece* pieces,
            std::size_t count, const ParamStep* steps, Stream stream);
// Same for one parameter, with numbers computed on the host. shard.index is not read.
void update(const rules::Rule& rule, const rules::Step& step, const UpdateTypes& types,
            const UpdatePiece& shard, std::uint64_t noise_stream, Stream stream);

}  // namespace tessera::kernels::cuda
