#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/kernels/rules.h"
#include "tessera/kernels/types.h"

namespace tessera::zero {

// Tensors of one parameter shard that an update rule reads and writes: flat, of equal length.
struct ShardTensors {
  at::Tensor param;
  at::Tensor master;  // fp32 master copy; undefined if there is none
  at::Tensor grad;
  at::Tensor a, b;  // states of the rule; undefined if it has none
  // For stochastic rounding, [Note: noise] in kernels/optimizer.h.
  std::int64_t begin = 0;  // offset of the shard in the whole parameter
  std::uint64_t stream = 0, seed = 0;
};

// Applies one step of a rule: in one pass of a fused kernel on the CPU or a GPU, or with ATen
// operations if no kernel supports the types.
void update_shard(const rules::Rule& rule, const rules::Step& step, const ShardTensors& shard);

// Returns the kernel type of the tensor's elements; nullopt if the CPU kernels do not support it.
std::optional<kernels::Type> kernel_type(const at::Tensor& tensor);

// Rounds fp32 values to bf16 stochastically, with the random numbers of kernels/optimizer.h. Uses
// ATen operations, so it works on any device.
at::Tensor round_stochastically(const at::Tensor& values, std::int64_t begin, std::uint64_t stream,
                                std::uint64_t seed, std::int64_t step);

}  // namespace tessera::zero
