#include "tessera/experts/dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/experts/gpu.h"
#include "tessera/kernels/cuda/experts.h"
#include "tessera/nn/parallel_for.h"

namespace tessera::experts {
namespace {

at::ScalarType sum_type(const at::Tensor& rows) {
  return rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

template <class T>
void combine_rows(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& slots) {
  const std::int64_t columns = rows.size(1), k = slots.size(1);
  const auto* from = rows.const_data_ptr<T>();
  const auto* of = slots.const_data_ptr<std::int32_t>();
  auto* to = out.mutable_data_ptr<T>();
  nn::parallel_for(0, slots.size(0), nn::grain_of(columns * k),
                   [=](std::int64_t begin, std::int64_t end) {
                     std::vector<float> sum(static_cast<std::size_t>(columns));
                     for (std::int64_t n = begin; n < end; ++n) {
                       std::fill(sum.begin(), sum.end(), 0.0f);
                       for (std::int64_t i = n * k; i < (n + 1) * k; ++i) {
                         if (of[i] < 0) continue;
                         const T* const row = from + of[i] * columns;
                         float* const data = sum.data();
                         for (std::int64_t c = 0; c < columns; ++c)
                           data[c] += static_cast<float>(row[c]);
                       }
                       for (std::int64_t c = 0; c < columns; ++c) {
                         to[n * columns + c] = static_cast<T>(sum[static_cast<std::size_t>(c)]);
                       }
                     }
                   });
}

}  // namespace

SortedPairs sort_pairs(const at::Tensor& experts, std::int64_t count) {
  if (gpu::takes(experts) && count <= static_cast<std::int64_t>(kernels::cuda::kMaxExperts)) {
    return gpu::sort_pairs(experts, count);
  }
  if (!experts.is_cpu()) return sort_pairs_by_operations(experts, count);
  SortedPairs result;
  result.counts = at::zeros({count}, at::kLong);
  result.slots = at::empty(experts.sizes(), experts.options());
  const auto* of = experts.const_data_ptr<std::int32_t>();
  auto* counts = result.counts.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < experts.numel(); ++i) {
    if (of[i] >= 0) ++counts[of[i]];
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(count));
  std::exclusive_scan(counts, counts + count, next.begin(), std::int64_t{0});
  result.order =
      at::empty({std::accumulate(counts, counts + count, std::int64_t{0})}, experts.options());
  auto* order = result.order.mutable_data_ptr<std::int32_t>();
  auto* slots = result.slots.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < experts.numel(); ++i) {
    slots[i] = -1;
    if (of[i] < 0) continue;
    const std::int64_t slot = next[static_cast<std::size_t>(of[i])]++;
    slots[i] = static_cast<std::int32_t>(slot);
    order[slot] = static_cast<std::int32_t>(i);
  }
  return result;
}

SortedPairs sort_pairs_by_operations(const at::Tensor& experts, std::int64_t count) {
  const at::Tensor of = experts.reshape({-1});
  const at::Tensor bins = at::where(of.lt(0), at::full_like(of, count), of);
  const auto [sorted, pairs] = at::sort(bins, /*stable=*/true, 0, /*descending=*/false);
  const auto numbers = of.options().dtype(at::kLong);
  SortedPairs result;
  result.order = pairs.to(at::kInt);
  result.counts = at::zeros({count + 1}, numbers)
                      .scatter_add_(0, bins.to(at::kLong), at::full_like(of, 1, numbers))
                      .narrow(0, 0, count);
  const at::Tensor slots =
      at::empty({of.numel()}, numbers).scatter_(0, pairs, at::arange(of.numel(), numbers));
  result.slots = slots.masked_fill_(of.lt(0), -1).to(at::kInt).view(experts.sizes());
  return result;
}

at::Tensor order_of(const at::Tensor& slots, std::int64_t rows) {
  if (gpu::takes(slots)) return gpu::order_of(slots, rows);
  if (!slots.is_cpu()) return order_of_by_operations(slots, rows);
  at::Tensor order = at::empty({rows}, slots.options());
  const auto* of = slots.const_data_ptr<std::int32_t>();
  auto* to = order.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < slots.numel(); ++i) {
    if (of[i] >= 0) to[of[i]] = static_cast<std::int32_t>(i);
  }
  return order;
}

at::Tensor order_of_by_operations(const at::Tensor& slots, std::int64_t rows) {
  const auto numbers = slots.options().dtype(at::kLong);
  const at::Tensor of = slots.reshape({-1}).to(at::kLong);
  // Rows without a pair get pair 0. The last place takes the pairs without a row.
  return at::zeros({rows + 1}, numbers)
      .scatter_(0, at::where(of.lt(0), at::full_like(of, rows), of),
                at::arange(of.numel(), numbers))
      .narrow(0, 0, rows)
      .to(at::kInt);
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& slots) {
  if (gpu::takes(rows) && gpu::takes(slots)) return gpu::combine(rows, slots);
  if (!rows.is_cpu() || !rows.is_contiguous()) return combine_by_operations(rows, slots);
  at::Tensor out = at::empty({slots.size(0), rows.size(1)}, rows.options());
  switch (rows.scalar_type()) {
    case at::kFloat: combine_rows<float>(out, rows, slots); break;
    case at::kBFloat16: combine_rows<c10::BFloat16>(out, rows, slots); break;
    default: return combine_by_operations(rows, slots);
  }
  return out;
}

at::Tensor combine_by_operations(const at::Tensor& rows, const at::Tensor& slots) {
  at::Tensor sum = at::zeros({slots.size(0), rows.size(1)}, rows.options().dtype(sum_type(rows)));
  if (rows.size(0) == 0) return sum.to(rows.scalar_type());
  for (std::int64_t i = 0; i < slots.size(1); ++i) {
    const at::Tensor of = slots.select(1, i);
    // Not by a factor 0, because rows without meaning may hold infinities.
    sum.add_(at::index_select(rows, 0, of.clamp_min(0)).masked_fill_(of.lt(0).unsqueeze(1), 0));
  }
  return sum.to(rows.scalar_type());
}

at::Tensor rows_of(const at::Tensor& x, const at::Tensor& source) {
  if (gpu::takes(x) && gpu::takes(source)) return gpu::rows_of(x, source);
  return at::index_select(x, 0, source);
}

at::Tensor values_of_pairs(const at::Tensor& values, const at::Tensor& slots) {
  if (values.size(0) == 0) return at::zeros(slots.sizes(), values.options());
  const at::Tensor of = slots.reshape({-1});
  return at::index_select(values, 0, of.clamp_min(0)).masked_fill_(of.lt(0), 0).view(slots.sizes());
}

}  // namespace tessera::experts
