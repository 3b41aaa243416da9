#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/core/recompute.h"
#include "tessera/nn/tensors.h"

namespace tessera::nn {

using tessera::name;
using tessera::parse_recompute;
using tessera::Recompute;

// What is recomputed: tensors in, tensors out.
using TensorFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Runs f now without keeping what it computes, and again in backward, with the random numbers of
// the first time. f must compute the same both times, and leave its inputs as they are (UsageError
// otherwise). `segment` is what recomputing_segment() says meanwhile.
std::vector<at::Tensor> recompute_tensors(Recompute mode, TensorFunction f,
                                          std::vector<at::Tensor> inputs,
                                          const void* segment = nullptr);

// The same for any function of tensors, with a segment's own address for recomputing_segment().
template <typename F, typename... Args>
auto recompute_segment(Recompute mode, const void* segment, F&& f, Args&&... args) {
  using Result = std::decay_t<std::invoke_result_t<F&, std::decay_t<Args>...>>;
  std::tuple<std::decay_t<Args>...> values(std::forward<Args>(args)...);
  if (mode == Recompute::none) return Result(std::apply(f, std::move(values)));
  std::vector<at::Tensor> inputs;
  each_tensor(values, [&](at::Tensor& tensor) { inputs.push_back(tensor); });
  // Only the inputs themselves keep tensors alive.
  each_tensor(values, [](at::Tensor& tensor) { tensor = at::Tensor(); });
  auto shape = std::make_shared<Result>();  // whatever of the result is no tensor
  TensorFunction run = [f = std::decay_t<F>(std::forward<F>(f)), values,
                        shape](std::vector<at::Tensor> in) mutable {
    auto arguments = values;
    std::size_t next = 0;
    each_tensor(arguments, [&](at::Tensor& tensor) { tensor = std::move(in[next++]); });
    Result result = std::apply(f, std::move(arguments));
    std::vector<at::Tensor> out;
    each_tensor(result, [&](at::Tensor& tensor) { out.push_back(std::exchange(tensor, {})); });
    *shape = std::move(result);
    return out;
  };
  std::vector<at::Tensor> out = recompute_tensors(mode, std::move(run), std::move(inputs), segment);
  Result result = std::move(*shape);
  std::size_t next = 0;
  each_tensor(result, [&](at::Tensor& tensor) { tensor = std::move(out[next++]); });
  return result;
}

// The same for any function of tensors (and of values that hold some, or none):
//   y = nn::recompute(nn::Recompute::full, [=](at::Tensor x) { return block->forward(x); },
//   x);
// f is copied: what it refers to must live until backward.
template <typename F, typename... Args>
auto recompute(Recompute mode, F&& f, Args&&... args) {
  return recompute_segment(mode, nullptr, std::forward<F>(f), std::forward<Args>(args)...);
}

// Returns whether this thread is running a segment for the second time, in backward. A module that
// counts, or that updates buffers in forward, does so only where this is false:
//   if (is_training() && !tessera::is_recomputing()) steps += 1;
// Otherwise each micro-batch would count twice.
bool is_recomputing();

// How deep this thread is inside the backward of recomputed segments, and the innermost of them:
// a gradient that is accumulated there may not be the last of its parameter in this backward pass.
int recomputing_depth();
// Null outside of any.
const void* recomputing_segment();

// For kernels that are matrix products but not of ATen, inside a selective segment: the first time
// `compute` runs and its results are kept, in the recomputation they come back. `name` (a literal)
// and `operands` are what the recomputation is checked by.
std::vector<at::Tensor> keep_in_selective(const char* name, at::TensorList operands,
                                          const std::function<std::vector<at::Tensor>()>& compute);

}  // namespace tessera::nn
