#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/axes.h"
#include "tessera/core/param_spec.h"

namespace tessera::tensor_parallel {

// Tensor-parallel ranks of a model. `sequence`: they also shard the sequence between the layers.
// `overlap`: the products of linears overlap with their collectives: [Note: overlap] in overlap.h.
struct Axis {
  comm::Group group = {};
  bool sequence = false;
  bool overlap = false;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  // Sizes of a mesh with only this axis, and the coordinate of this rank in it, for functions that
  // take a ParamSpec.
  Axes axes() const { return {{tessera::Axis::tp, size()}}; }
  Coordinate coordinate() const { return {{tessera::Axis::tp, rank()}}; }
};

// Base of modules that hold shards of parameters. See [Note: param specs].
class Sharded {
 public:
  virtual ~Sharded() = default;
  // Returns the specs of its own parameters, by their names in this module.
  virtual std::vector<ParamSpec> specs() const = 0;
};

// Returns the specs of all parameters of a model, in the order of named_parameters(). Parameters of
// modules that are not Sharded are whole.
std::vector<ParamSpec> find_specs(const torch::nn::Module& model, const std::string& prefix = "");

// Fills a shard with random numbers that do not depend on the sharding: element i of the whole
// parameter is normal number i of the stream of its name, times the deviation, plus the mean.
// `part` is the shard of the rank at `coordinate`; its padding becomes zero.
void fill_normal(const at::Tensor& part, const ParamSpec& spec, const Axes& axes,
                 const Coordinate& coordinate, std::uint64_t seed, double deviation,
                 double mean = 0);
// Fills `out` with elements [begin, begin + out.numel()) of that shard, for a rank that keeps only
// a part of it. `out` must be contiguous fp32. Uses all threads of nn::parallel_for, or a GPU,
// [Note: kernels on a GPU], where about one number in a million differs in the last digit.
void fill_normal_range(const at::Tensor& out, const ParamSpec& spec, const Axes& axes,
                       const Coordinate& coordinate, std::int64_t begin, std::uint64_t seed,
                       double deviation, double mean = 0);

// Same with numbers distributed uniformly over mean ± bound: element i is uniform number i of the
// stream. The tensor may be on any device. For small parameters such as adapters.
void fill_uniform(const at::Tensor& part, const ParamSpec& spec, const Axes& axes,
                  const Coordinate& coordinate, std::uint64_t seed, double bound, double mean = 0);
// Fills `out` with elements [begin, begin + out.numel()) of that shard.
void fill_uniform_range(const at::Tensor& out, const ParamSpec& spec, const Axes& axes,
                        const Coordinate& coordinate, std::int64_t begin, std::uint64_t seed,
                        double bound, double mean = 0);

// Initializes the parameters of a model as a single process would: parameters with more than one
// dim with fill_normal, biases with 0, other vectors with 1. Parameters without memory are skipped.
void initialize(torch::nn::Module& model, const Axes& axes, const Coordinate& coordinate,
                std::uint64_t seed, double deviation = 0.02);

}  // namespace tessera::tensor_parallel
