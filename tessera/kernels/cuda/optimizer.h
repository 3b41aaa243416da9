#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/cuda/cuda.h"
#include "tessera/kernels/rules.h"

// [Note: a step on a GPU] What an optimizer does after the last backward pass, without the host:
//   sum_of_squares   of this rank's gradients, beside its loss and which parameters have a gradient
//   add_sums         of several ranks, after they have exchanged them
//   decide           norm, clipping, finite or not; counts updates; the numbers of every parameter
//   update           of all elements of a flat space
// Tables say where everything lies; they are made once. All structs are read and written on the
// device, so that nothing of a step is baked into a captured graph.
namespace tessera::kernels::cuda {

// What differs from step to step. The host writes it; behind it lies a byte for each parameter: 1
// if this rank has a gradient of it.
struct StepInput {
  double lr = 0;
  double clip_norm = 0;  // 0 does not clip
  double weight_decay = 0;
  double factor = 1;  // of the loss: 1 / tokens
  float factor32 = 1;
  float unused = 0;
};

// Of a rank, or of all. Behind it lie the bytes of StepInput; see sums_bytes().
struct StepSums {
  double squares = 0;
  double loss = 0;
};
constexpr std::size_t sums_bytes(std::size_t params) {
  return sizeof(StepSums) + (params + 7) / 8 * 8;
}

// Lasts from step to step.
struct StepState {
  double loss_scale = 1;
  std::int64_t good_steps = 0;  // since the scale was changed
  std::int64_t steps = 0;       // that were not skipped
};

struct StepResult {
  double loss = 0;
  double norm = 0;        // before clipping, of the gradient without the loss scale
  double loss_scale = 1;  // of this step
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
};

// [Note: loss scaling] Gradients in f16 would vanish below 6e-8: the loss is multiplied by a scale
// that is as large as it can be. It starts at 2^16, doubles after kGoodSteps steps in a row, and is
// halved where something overflows; such a step is skipped.
constexpr double kFirstLossScale = 65536;
constexpr std::int64_t kGoodSteps = 2000;
constexpr double kLargestLossScale = 0x1p24;

// A parameter, as the tables know it.
struct ParamInfo {
  double lr_scale = 1;
  std::int64_t decays = 1;
  std::uint64_t stream = 0;  // of stochastic rounding, [Note: noise] in kernels/optimizer.h
};
// The numbers of its step: those of its rule's formula.
struct ParamStep {
  float numbers[12] = {};
  std::uint32_t active = 0;  // 0: it stays as it is
  std::uint32_t count = 0;   // updates, this one included
  std::uint64_t stream = 0;
};

// The sum of x² in fp64. The order of additions depends on how the pieces are cut alone.
struct SquarePiece {
  const void* x = nullptr;
  std::uint32_t count = 0;  // at most kSquarePiece
  DType type = DType::f32;
};
constexpr std::uint32_t kSquarePiece = 1u << 16;
// Writes the sums of this rank to `out`, of sums_bytes(params). partials: one number for each
// piece. `used`: the bytes behind StepInput. loss: null for 0.
void sum_of_squares(const SquarePiece* pieces, std::size_t count, double* partials,
                    const double* loss, const std::uint8_t* used, std::size_t params, void* out,
                    Stream stream);

// out = the sum of `ranks` rows of sums_bytes(params) bytes, in that order; a parameter is used if
// it is anywhere. `counts_loss`: otherwise the loss becomes 0. With params = 0 the bytes of out
// stay.
void add_sums(const void* rows, int ranks, std::size_t params, bool counts_loss, void* out,
              Stream stream);

struct Decision {
  const StepInput* input = nullptr;
  const void* sums = nullptr;
  std::size_t params = 0;
  const ParamInfo* infos = nullptr;
  bool scaled = false;  // [Note: loss scaling]
  StepState* state = nullptr;
  std::int64_t* updates = nullptr;  // of each parameter
  ParamStep* steps = nullptr;
  StepResult* result = nullptr;
};
void decide(const rules::Rule& rule, const Decision& what, Stream stream);

// A stretch of one parameter, 16-byte aligned where it is to be fast.
struct UpdatePiece {
  const void* grad = nullptr;
  float* a = nullptr;  // the rule's states
  float* b = nullptr;
  float* master = nullptr;
  void* param = nullptr;
  std::uint64_t begin = 0;  // in the whole parameter
  std::uint32_t count = 0;
  std::uint32_t index = 0;  // of its ParamStep
};
constexpr std::uint32_t kUpdatePiece = 1u << 15;
// How a space stores its parameters: as ParamShard in kernels/optimizer.h says, and f16 with a
// master copy likewise.
struct UpdateTypes {
  DType param = DType::f32;
  DType grad = DType::f32;
  bool master = false;
  std::uint64_t seed = 0;  // of stochastic rounding
};
// One step of a rule on all pieces, in one pass over memory. What an element becomes does not
// depend on how it is cut.
void update(const rules::Rule& rule, const UpdateTypes& types, const UpdatePiece* pieces,
            std::size_t count, const ParamStep* steps, Stream stream);
// The same on one parameter, whose numbers the host knows. shard.index is not read.
void update(const rules::Rule& rule, const rules::Step& step, const UpdateTypes& types,
            const UpdatePiece& shard, std::uint64_t noise_stream, Stream stream);

}  // namespace tessera::kernels::cuda
