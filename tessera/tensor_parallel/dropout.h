#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tensor_parallel {

// Where random numbers of an operation come from: the same key gives the same numbers on every rank
// and in a recomputation.
struct RandomKey {
  std::uint64_t seed = 0;
  std::string operation;  // "blocks.3.dropout"
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;  // of the whole job, so that replicas draw different numbers
};

// What a tensor is a part of: the sizes of the whole, and where in it the part begins. Empty: all.
struct Window {
  std::vector<std::int64_t> whole, begin;
};

// Each element becomes 0 with probability p, and is divided by 1 - p otherwise. Element i of the
// whole tensor draws number i, so what is dropped does not depend on how it is cut.
at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key, const Window& window = {});

}  // namespace tessera::tensor_parallel
