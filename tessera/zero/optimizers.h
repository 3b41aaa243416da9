#pragma once

#include <memory>
#include <optional>

#include "tessera/kernels/types.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

struct UpdateParts {
  Plan& plan;
  const Options& options;
  const comm::Group& group;
  const Buffers& buffers;
  const Gatherer& gatherer;
};

std::unique_ptr<Update> make_update(const AdamW& how, const UpdateParts& parts);
std::unique_ptr<Update> make_update(const SGD& how, const UpdateParts& parts);
std::unique_ptr<Update> make_update(const TorchOptimizer& how, const UpdateParts& parts);

// The type by which the kernels know this tensor's elements; nothing if they do not take it.
std::optional<kernels::Type> kernel_type(const at::Tensor& tensor);

// fp32 values rounded to bf16 up or down at random, by the numbers of kernels/optimizer.h: on any
// device, through ATen.
at::Tensor round_stochastically(const at::Tensor& values, std::int64_t begin, std::uint64_t stream,
                                std::uint64_t seed, std::int64_t step);

}  // namespace tessera::zero
