#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/rules.h"
#include "tessera/kernels/types.h"

namespace tessera::kernels {

// Shard of a parameter with its state; every array has `count` elements. A parameter is stored in
// one of three ways:
//   fp32                    param is the value; no master
//   bf16 with fp32 master   master is the value, param its rounding (to nearest even)
//   bf16 without master     param is the value, rounded stochastically; see [Note: noise]
//
// [Note: noise] The random bits of an element depend on (seed, stream, step, its index in the WHOLE
// parameter), so every sharding gives the same bits. Element 128g + 64h + 16w + j takes half h (0:
// the lower) of word w of Philox block (step << 32) + 16g + j.
struct ParamShard {
  void* param = nullptr;
  Type param_type = Type::f32;
  float* master = nullptr;
  const void* grad = nullptr;
  Type grad_type = Type::f32;
  std::size_t count = 0;
  // Used only for stochastic rounding.
  std::uint64_t begin = 0;   // index of the first element within the whole parameter
  std::uint64_t stream = 0;  // stream_of(name of the parameter)
  std::uint64_t seed = 0;
};

// Applies one step of a rule in one pass over memory. `a` and `b` are its states, null if it has
// none. The result for an element does not depend on where the shard begins and ends (same bits).
void update(const rules::Rule& rule, const rules::Step& step, const ParamShard& shard,
            float* a = nullptr, float* b = nullptr);

// Rounds each element up or down at random, with probabilities such that the mean of to[i] is
// from[i].
void round_to_bf16_stochastic(const float* from, std::uint16_t* to, std::size_t count,
                              std::uint64_t begin, std::uint64_t stream, std::uint64_t seed,
                              std::int64_t step);

namespace reference {  // one element, with the same noise
// Returns the 16 random bits of an element.
std::uint32_t noise_of(std::uint64_t index, std::uint64_t stream, std::uint64_t seed,
                       std::int64_t step);
std::uint16_t to_bf16_stochastic(float value, std::uint64_t index, std::uint64_t stream,
                                 std::uint64_t seed, std::int64_t step);
}  // namespace reference

// Returns the sum of x² in fp64. The order of additions depends only on n, so the bits are the same
// on every processor: element i goes to partial sum i % 16, and the partial sums are added as a
// binary tree.
double sum_of_squares(const void* x, Type type, std::size_t n);

namespace reference {
double sum_of_squares(const void* x, Type type, std::size_t n);  // returns the same bits
}

}  // namespace tessera::kernels
