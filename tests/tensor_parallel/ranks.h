#pragma once

// Threads as tensor-parallel ranks, and helpers that combine their tensors.

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/nn/operand.h"
#include "tessera/tensor_parallel/sharded.h"
#include "tests/ranks.h"

namespace tessera::tensor_parallel::test {

using tessera::over;

// Calls body(false) with separate operations, then body(true) with linears that are fused with the
// operations around them, as on a GPU.
template <typename F>
void separate_and_fused(F&& body) {
  struct Restore {
    ~Restore() { nn::fuse_on_cpu(false); }
  } restore;
  for (const bool fused : {false, true}) {
    nn::fuse_on_cpu(fused);
    body(fused);
  }
}

// Returns one value per rank.
template <typename T>
std::vector<T> each_rank(int ranks, const std::function<T(const comm::Group&)>& body) {
  std::vector<T> results(static_cast<std::size_t>(ranks));
  over(ranks, [&](const comm::Group& group) {
    results[static_cast<std::size_t>(group.rank())] = body(group);
  });
  return results;
}

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator);
}

// Combines the shards of all ranks to the whole parameter (or its gradient). Elements that several
// ranks hold must be equal bitwise.
inline at::Tensor whole_of(const ParamSpec& spec, const std::vector<at::Tensor>& parts) {
  const int tp = static_cast<int>(parts.size());
  at::Tensor whole = torch::full(spec.shape, std::numeric_limits<float>::quiet_NaN());
  auto* to = whole.mutable_data_ptr<float>();
  for (int t = 0; t < tp; ++t) {
    const Axes axes{{tessera::Axis::tp, tp}};
    const Coordinate at{{tessera::Axis::tp, t}};
    const at::Tensor part = parts[static_cast<std::size_t>(t)].to(torch::kFloat).contiguous();
    EXPECT_EQ(part.sizes().vec(), local_shape(spec, axes, at)) << spec.name;
    const auto* from = part.const_data_ptr<float>();
    at::Tensor padding = part.clone();
    for (const Run& run : local_runs(spec, axes, at)) {
      padding.view(-1).narrow(0, run.local, run.count).zero_();
      for (std::int64_t i = 0; i < run.count; ++i) {
        float& place = to[run.whole + i];
        const float value = from[run.local + i];
        if (!std::isnan(place) && place != value) {
          ADD_FAILURE() << spec.name << " element " << run.whole + i << " differs on rank " << t;
          return whole;
        }
        place = value;
      }
    }
    EXPECT_FALSE(padding.any().item<bool>()) << spec.name << ": padding is not zero on rank " << t;
  }
  EXPECT_FALSE(whole.isnan().any().item<bool>()) << spec.name;
  return whole;
}

inline void expect_close(const at::Tensor& got, const at::Tensor& wanted, const std::string& what,
                         double tolerance = 2e-5) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  if (wanted.numel() == 0) return;
  const double scale = wanted.abs().max().item<double>() + 1e-4;
  const double error = (got - wanted).abs().max().item<double>();
  EXPECT_LE(error, tolerance * scale) << what;
}

// Parameters, or their gradients, by name.
using Named = std::map<std::string, at::Tensor>;
inline Named parameters_of(const torch::nn::Module& model) {
  Named all;
  for (const auto& item : model.named_parameters()) all[item.key()] = item.value().detach();
  return all;
}
inline Named gradients_of(const torch::nn::Module& model) {
  Named all;
  for (const auto& item : model.named_parameters()) all[item.key()] = item.value().grad();
  return all;
}

// Combines the shards of all ranks to whole tensors.
inline Named wholes_of(const std::vector<ParamSpec>& specs, const std::vector<Named>& ranks) {
  Named wholes;
  for (const ParamSpec& spec : specs) {
    std::vector<at::Tensor> parts;
    for (const Named& rank : ranks) {
      const auto found = rank.find(spec.name);
      if (found == rank.end() || !found->second.defined()) {
        ADD_FAILURE() << spec.name << " is missing";
        return wholes;
      }
      parts.push_back(found->second);
    }
    wholes[spec.name] = whole_of(spec, parts);
  }
  return wholes;
}

}  // namespace tessera::tensor_parallel::test
