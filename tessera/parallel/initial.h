#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/core/param_spec.h"

namespace tessera {

// What a parameter starts with: random numbers that depend on the seed, its name and the element
// alone, so that any mesh starts alike. Or what its layer's constructor gave it.
struct Initial {
  double mean = 0;
  double deviation = 0;  // of normal numbers
  double uniform = 0;    // or, if this is not 0: of numbers spread evenly over mean ± this
  bool keep = false;     // as it was made, by the first rank that has it
};
// By a parameter's name and shape.
using InitialValues = std::function<Initial(const ParamSpec&)>;

// Values that lie somewhere, in files say, and that the parameters that are there start with
// instead. `read` puts elements of the whole parameter behind `into`, as Run::local says; every
// rank asks for what it keeps.
struct StoredValues {
  std::function<bool(const ParamSpec&)> has;
  std::function<void(const ParamSpec&, const std::vector<Run>& runs, float* into)> read;
};
// Reads elements [begin, begin + out.numel()) of the tensor of the rank at a coordinate, in memory
// order; padding is 0. `out`: contiguous fp32, on any device.
void fill_stored_range(const at::Tensor& out, const ParamSpec& spec, const StoredValues& stored,
                       const Axes& axes, const Coordinate& coordinate, std::int64_t begin);

// Biases 0, other vectors 1, the rest with deviation 0.02.
Initial initial_default(const ParamSpec& spec);
// What the layers' constructors gave them, for modules that fill their own.
Initial initial_kept(const ParamSpec& spec);

// Gives `param`, the tensor of the rank at a coordinate, its first values; not those that are kept.
void fill_initial(const at::Tensor& param, const ParamSpec& spec, const Initial& initial,
                  std::uint64_t seed, const Axes& axes, const Coordinate& coordinate);

// Elements [begin, begin + out.numel()) of that, in memory order, for a rank that keeps only a
// shard of it (zero::Options::initial). `out`: contiguous fp32, on the CPU, or on a GPU for which
// there are kernels.
void fill_initial_range(const at::Tensor& out, const ParamSpec& spec, const Initial& initial,
                        std::uint64_t seed, const Axes& axes, const Coordinate& coordinate,
                        std::int64_t begin);

}  // namespace tessera
