#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/parallel/parallelize.h"

namespace tessera {

// Reads elements [begin, begin + out.numel()) of the tensor that the rank at a coordinate has, in
// memory order; padding is 0. `out`: contiguous fp32, on any device.
void fill_stored_range(const at::Tensor& out, const ParamSpec& spec, const StoredValues& stored,
                       const Axes& axes, const Coordinate& coordinate, std::int64_t begin);

// Sets the initial values of `param`, the tensor of the rank at a coordinate. No effect if
// Initial::keep.
void fill_initial(const at::Tensor& param, const ParamSpec& spec, const Initial& initial,
                  std::uint64_t seed, const Axes& axes, const Coordinate& coordinate);

// Computes elements [begin, begin + out.numel()) of these values, in memory order, for a rank that
// keeps only a shard (zero::Options::initial). `out`: contiguous fp32, on the CPU, or on a GPU if
// GPU kernels are built in.
void fill_initial_range(const at::Tensor& out, const ParamSpec& spec, const Initial& initial,
                        std::uint64_t seed, const Axes& axes, const Coordinate& coordinate,
                        std::int64_t begin);

}  // namespace tessera
