#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/core/run_options.h"
#include "tessera/nn/tensors.h"

namespace tessera::nn {

using tessera::name;
using tessera::Recompute;

// Function that can be recomputed: tensors in, tensors out.
using TensorFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Runs f now without keeping its intermediate results, and again in backward with the same random
// numbers. f must compute the same both times and must not change its inputs (UsageError
// otherwise). recomputing_segment() returns `segment` during the backward of the segment.
std::vector<at::Tensor> recompute_tensors(Recompute mode, TensorFunction f,
                                          std::vector<at::Tensor> inputs,
                                          const void* segment = nullptr);

// recompute() with the address of a segment for recomputing_segment().
template <typename F, typename... Args>
auto recompute_segment(Recompute mode, const void* segment, F&& f, Args&&... args) {
  using Result = std::decay_t<std::invoke_result_t<F&, std::decay_t<Args>...>>;
  std::tuple<std::decay_t<Args>...> values(std::forward<Args>(args)...);
  if (mode == Recompute::none) return Result(std::apply(f, std::move(values)));
  std::vector<at::Tensor> inputs;
  each_tensor(values, [&](at::Tensor& tensor) { inputs.push_back(tensor); });
  // Only `inputs` keeps the tensors alive.
  each_tensor(values, [](at::Tensor& tensor) { tensor = at::Tensor(); });
  auto shape = std::make_shared<Result>();  // non-tensor parts of the result
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

// recompute_tensors() for any function of tensors, of values that hold tensors, and of other
// values:
//   y = nn::recompute(nn::Recompute::full, [=](at::Tensor x) { return block->forward(x); }, x);
// f is copied: objects that it refers to must live until backward.
template <typename F, typename... Args>
auto recompute(Recompute mode, F&& f, Args&&... args) {
  return recompute_segment(mode, nullptr, std::forward<F>(f), std::forward<Args>(args)...);
}

// Returns whether this thread is running a segment for the second time, in backward. A module that
// counts, or that updates buffers in forward, must do so only if this is false:
//   if (is_training() && !tessera::is_recomputing()) steps += 1;
// Otherwise each micro-batch would count twice.
bool is_recomputing();

// Returns the nesting depth of this thread inside the backward of recomputed segments. While it is
// not 0, an accumulated gradient may not be the last one of its parameter in this backward pass.
int recomputing_depth();
// Returns the innermost segment of recomputing_depth(); null outside of any.
const void* recomputing_segment();

// For matrix products that are not ATen operators, inside a selective segment: the first run calls
// `compute` and keeps the results, and the recomputation returns them. `name` (a literal) and
// `operands` are used to check that the recomputation makes the same call.
std::vector<at::Tensor> keep_in_selective(const char* name, at::TensorList operands,
                                          const std::function<std::vector<at::Tensor>()>& compute);

}  // namespace tessera::nn
