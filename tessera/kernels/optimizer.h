#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

namespace tessera::kernels {

// A slice of a parameter with its state, all of `count` elements. Three ways to store a parameter:
//   fp32                    param is the value; no master
//   bf16 with fp32 master   master is the value, param its rounding (to nearest even)
//   bf16 without master     param is the value, rounded stochastically; see [Note: noise]
//
// [Note: noise] The random bits of an element depend on (seed, stream, step, its index in the WHOLE
// parameter), so any slice gives the bits that the whole gives. Element 128g + 64h + 16w + j takes
// half h (0: the lower) of word w of Philox block (step << 32) + 16g + j.
struct ParamSlice {
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

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled: 0 makes it Adam
  std::int64_t step = 1;       // counted from 1
  double grad_scale = 1;       // gradients are multiplied by it first: clip factor, 1 / tokens, …
};

// One step as torch::optim::AdamW does it, in one pass over memory:
//   g *= grad_scale;  p *= 1 - lr·weight_decay
//   m = beta1·m + (1-beta1)·g;  v = beta2·v + (1-beta2)·g²
//   p -= lr / (1-beta1^step) · m / (sqrt(v) / sqrt(1-beta2^step) + eps)
// What an element becomes does not depend on where the slice begins and ends (same bits).
void adamw(const AdamW& how, const ParamSlice& slice, float* m, float* v);

struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  std::int64_t step = 1;  // for the noise only
  double grad_scale = 1;
};

// One step as torch::optim::SGD without dampening does it. `velocity` starts as zeros; it is not
// touched, and may be null, if momentum is 0.
//   g = g·grad_scale + weight_decay·p;  u = momentum·u + g
//   p -= lr · (nesterov ? g + momentum·u : u)
void sgd(const Sgd& how, const ParamSlice& slice, float* velocity);

// to[i] = from[i] rounded up or down with the probabilities that make its mean from[i].
void round_to_bf16_stochastic(const float* from, std::uint16_t* to, std::size_t count,
                              std::uint64_t begin, std::uint64_t stream, std::uint64_t seed,
                              std::int64_t step);

// One element after another, in the order of the formulas above, with the same noise.
namespace reference {
void adamw(const AdamW& how, const ParamSlice& slice, float* m, float* v);
void sgd(const Sgd& how, const ParamSlice& slice, float* velocity);
std::uint16_t to_bf16_stochastic(float value, std::uint64_t index, std::uint64_t stream,
                                 std::uint64_t seed, std::int64_t step);
}  // namespace reference

}  // namespace tessera::kernels
