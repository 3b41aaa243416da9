#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/kernels/rules.h"
#include "tessera/kernels/types.h"

namespace tessera::zero {

// A shard of a parameter as a rule sees it: flat tensors of one length.
struct ShardTensors {
  at::Tensor param;
  at::Tensor master;  // undefined where there is none
  at::Tensor grad;
  at::Tensor a, b;  // the rule's states; undefined where it has none
  // Of stochastic rounding: see [Note: noise] in kernels/optimizer.h.
  std::int64_t begin = 0;  // of the shard in the whole parameter
  std::uint64_t stream = 0, seed = 0;
};

// One step of a rule: one pass of a fused kernel, on the CPU or a GPU; where there is none for the
// types, its formula in ATen.
void update_shard(const rules::Rule& rule, const rules::Step& step, const ShardTensors& shard);

// The type by which the kernels know this tensor's elements; nothing if they do not take it.
std::optional<kernels::Type> kernel_type(const at::Tensor& tensor);

// fp32 values rounded to bf16 up or down at random, by the numbers of kernels/optimizer.h: on any
// device, through ATen.
at::Tensor round_stochastically(const at::Tensor& values, std::int64_t begin, std::uint64_t stream,
                                std::uint64_t seed, std::int64_t step);

}  // namespace tessera::zero
