#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/param_spec.h"

namespace tessera::tensor_parallel {

// A module that has parts of parameters says which. See [Note: param specs].
class Sharded {
 public:
  virtual ~Sharded() = default;
  // Of its own parameters, by their names in this module.
  virtual std::vector<ParamSpec> specs() const = 0;
};

// All parameters of a model, in the order of named_parameters(). Those of modules that are not
// Sharded are whole.
std::vector<ParamSpec> find_specs(const torch::nn::Module& model, const std::string& prefix = "");

// Random numbers that do not depend on how a parameter is cut: element i of the whole parameter is
// normal number i of the stream of its name, times the deviation, plus the mean. `part` is what
// the rank at a coordinate holds; its padding becomes zero.
void fill_normal(const at::Tensor& part, const ParamSpec& spec, const Axes& axes,
                 const Coordinate& coordinate, std::uint64_t seed, double deviation,
                 double mean = 0);
// Elements [begin, begin + out.numel()) of that, for a rank that keeps only a shard of it. `out` is
// contiguous fp32. Both use all threads of nn::parallel_for; or a GPU, [Note: kernels on a GPU],
// where the numbers are the same but for the last digit of one in some million.
void fill_normal_range(const at::Tensor& out, const ParamSpec& spec, const Axes& axes,
                       const Coordinate& coordinate, std::int64_t begin, std::uint64_t seed,
                       double deviation, double mean = 0);

// The same with numbers that are spread evenly over mean ± bound: number i of the stream's uniform
// ones. `out` may be on any device. For what is small: adapters.
void fill_uniform(const at::Tensor& part, const ParamSpec& spec, const Axes& axes,
                  const Coordinate& coordinate, std::uint64_t seed, double bound, double mean = 0);
// Elements [begin, begin + out.numel()) of that.
void fill_uniform_range(const at::Tensor& out, const ParamSpec& spec, const Axes& axes,
                        const Coordinate& coordinate, std::int64_t begin, std::uint64_t seed,
                        double bound, double mean = 0);

// The parameters of a model as if one process had made it: those of more than one dim by
// fill_normal, biases 0, other vectors 1. Parameters without memory stay so.
void initialise(torch::nn::Module& model, const Axes& axes, const Coordinate& coordinate,
                std::uint64_t seed, double deviation = 0.02);

}  // namespace tessera::tensor_parallel
