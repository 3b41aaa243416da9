#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/core/param_spec.h"

namespace tessera {

// Initial values of a parameter: random numbers that depend only on the seed, its name and the
// element, so that every mesh starts with the same values, or the values of its constructor.
struct Initial {
  double mean = 0;
  double deviation = 0;  // standard deviation of a normal distribution
  double uniform = 0;    // if not 0: uniform distribution over mean ± uniform instead
  bool keep = false;     // keep the constructor's values, of the first rank that has it
};
// Function that returns the initial values by a parameter's name and shape.
using InitialValues = std::function<Initial(const ParamSpec&)>;

// Stored initial values, such as those in files, for the parameters that `has` returns true for.
// `read` writes elements of the whole parameter to `into`, at the offsets Run::local; every rank
// requests only the elements that it keeps.
struct StoredValues {
  std::function<bool(const ParamSpec&)> has;
  std::function<void(const ParamSpec&, const std::vector<Run>& runs, float* into)> read;
};
// Reads elements [begin, begin + out.numel()) of the tensor that the rank at a coordinate has, in
// memory order; padding is 0. `out`: contiguous fp32, on any device.
void fill_stored_range(const at::Tensor& out, const ParamSpec& spec, const StoredValues& stored,
                       const Axes& axes, const Coordinate& coordinate, std::int64_t begin);

// Returns 0 for biases, 1 for other vectors, and a standard deviation of 0.02 for the rest.
Initial initial_default(const ParamSpec& spec);
// Keeps the values of the layers' constructors, for modules that initialize themselves.
Initial initial_kept(const ParamSpec& spec);

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
