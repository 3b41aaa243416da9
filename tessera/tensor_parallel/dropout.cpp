#include "tessera/tensor_parallel/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"

namespace tessera::tensor_parallel {
namespace {

Window window_of(const at::Tensor& x, Window window) {
  if (window.whole.empty()) window.whole = x.sizes().vec();
  if (window.begin.empty()) window.begin.assign(window.whole.size(), 0);
  bool good = window.whole.size() == static_cast<std::size_t>(x.dim()) &&
              window.begin.size() == window.whole.size();
  for (std::size_t d = 0; good && d < window.whole.size(); ++d) {
    good = window.begin[d] >= 0 &&
           window.begin[d] + x.size(static_cast<std::int64_t>(d)) <= window.whole[d];
  }
  if (good) return window;
  throw UsageError(tessera::str("dropout got a tensor ", x.sizes(), " that begins at ",
                                at::IntArrayRef(window.begin), " of one of ",
                                at::IntArrayRef(window.whole), "; wanted a part of it"));
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key, const Window& window) {
  if (!(p >= 0 && p < 1)) throw UsageError(str("dropout got p = ", p, "; wanted 0 <= p < 1"));
  if (p == 0 || x.numel() == 0) return x;
  const Window in = window_of(x, window);
  const Philox random(key.seed, stream_of(str(key.operation, "/", key.step, "/", key.micro_batch)));
  // The factor of each element, row by row of the last dim.
  at::Tensor factors = at::empty(x.sizes(), at::kFloat);
  auto* to = factors.mutable_data_ptr<float>();
  const std::int64_t cols = x.dim() == 0 ? 1 : x.size(-1), rows = x.numel() / cols;
  const auto kept = static_cast<float>(1 / (1 - p)), limit = static_cast<float>(p);
  at::parallel_for(0, rows, std::max<std::int64_t>(1, (1 << 14) / cols),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t r = first; r < last; ++r) {
                       std::int64_t rest = r, at = 0, stride = 1;  // of the row in the whole
                       for (std::int64_t d = x.dim() - 1; d >= 0; --d) {
                         const auto i = static_cast<std::size_t>(d);
                         std::int64_t index = in.begin[i];
                         if (d < x.dim() - 1) {
                           index += rest % x.size(d);
                           rest /= x.size(d);
                         }
                         at += index * stride;
                         stride *= in.whole[i];
                       }
                       for (std::int64_t c = 0; c < cols; ++c) {
                         const float u = random.uniform(static_cast<std::uint64_t>(at + c));
                         to[r * cols + c] = u < limit ? 0.0f : kept;
                       }
                     }
                   });
  return x * factors.to(x.options());
}

}  // namespace tessera::tensor_parallel
