#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/rules.h"
#include "tessera/kernels/types.h"

namespace tessera::kernels {

// A shard of a parameter with its state, all of `count` elements. Three ways to store a parameter:
//   fp32                    param is the value; no master
//   bf16 with fp32 master   master is the value, param its rounding (to nearest even)
//   bf16 without master     param is the value, rounded stochastically; see [Note: noise]
//
// [Note: noise] The random bits of an element depend on (seed, stream, step, its index in the WHOLE
// parameter), so any shard gives the bits that the whole gives. Element 128g + 64h + 16w + j takes
// half h (0: the lower) of word w of Philox block (step << 32) + 16g + j.
struct ParamShard {
  void* param = nullptr;
  Type param_type = Type::f32;
  float* master = nullptr;
  const void* grad = nullptr;
  Type grad_type = Type::f32;
  std::size_t count = 0;
  // Read only when rounding stochastically.
  std::uint64_t begin = 0;   // index of the first element in the whole parameter
  std::uint64_t stream = 0;  // stream_of(name of the parameter)
  std::uint64_t seed = 0;
};

// One step of a rule in one pass over memory; `a` and `b` are its states, null where it has none.
// What an element becomes does not depend on where the shard begins and ends (same bits).
void update(const rules::Rule& rule, const rules::Step& step, const ParamShard& shard,
            float* a = nullptr, float* b = nullptr);

// to[i] = from[i] rounded up or down with the probabilities that make its mean from[i].
void round_to_bf16_stochastic(const float* from, std::uint16_t* to, std::size_t count,
                              std::uint64_t begin, std::uint64_t stream, std::uint64_t seed,
                              std::int64_t step);

namespace reference {  // of one element, with the same noise
std::uint16_t to_bf16_stochastic(float value, std::uint64_t index, std::uint64_t stream,
                                 std::uint64_t seed, std::int64_t step);
}  // namespace reference

}  // namespace tessera::kernels
