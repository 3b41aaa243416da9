#include "tessera/experts/gpu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/kernels/cuda/experts.h"
#include "tessera/nn/gpu.h"

namespace tessera::experts {

namespace cuda = kernels::cuda;

namespace gpu {
namespace {

std::size_t elements(std::int64_t n) { return static_cast<std::size_t>(n); }

cuda::ExpertActivation activation_of(const at::Tensor& h, const at::Tensor& weights,
                                     const ActivationKind& kind) {
  const std::int64_t columns = kind.gated ? h.size(1) / 2 : h.size(1);
  return {.type = nn::gpu::type_of(h),
          .activation = kind.activation,
          .gated = kind.gated,
          .rows = elements(h.size(0)),
          .cols = elements(columns),
          .h = h.const_data_ptr(),
          .weights = weights.const_data_ptr<float>()};
}

}  // namespace

bool takes(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || !cuda::built() || !tensor.is_contiguous()) return false;
  return tensor.scalar_type() == at::kInt || nn::gpu::takes(tensor);
}

SortedPairs sort_pairs(const at::Tensor& experts, std::int64_t count) {
  const cuda::SortPairs in{elements(experts.numel()), elements(count),
                           experts.const_data_ptr<std::int32_t>()};
  const auto numbers = experts.options();
  SortedPairs result;
  result.slots = at::empty(experts.sizes(), numbers);
  result.order = at::empty({experts.numel()}, numbers);
  result.counts = at::empty({count}, numbers.dtype(at::kLong));
  const at::Tensor scratch =
      at::empty({static_cast<std::int64_t>(cuda::sort_scratch(in))}, numbers);
  cuda::sort_pairs(in, result.order.mutable_data_ptr<std::int32_t>(),
                   result.slots.mutable_data_ptr<std::int32_t>(),
                   result.counts.mutable_data_ptr<std::int64_t>(),
                   scratch.mutable_data_ptr<std::int32_t>(), nn::gpu::stream_of(experts));
  return result;
}

at::Tensor order_of(const at::Tensor& slots, std::int64_t rows) {
  at::Tensor order = at::zeros({rows}, slots.options());
  cuda::order_pairs(slots.const_data_ptr<std::int32_t>(), elements(slots.numel()),
                    order.mutable_data_ptr<std::int32_t>(), nn::gpu::stream_of(slots));
  return order;
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& slots) {
  at::Tensor out = at::empty({slots.size(0), rows.size(1)}, rows.options());
  cuda::combine_rows(
      {nn::gpu::type_of(rows), elements(slots.size(0)), elements(slots.size(1)),
       elements(rows.size(1)), rows.const_data_ptr(), slots.const_data_ptr<std::int32_t>()},
      out.mutable_data_ptr(), nn::gpu::stream_of(rows));
  return out;
}

at::Tensor rows_of(const at::Tensor& x, const at::Tensor& source) {
  at::Tensor out = at::empty({source.numel(), x.size(1)}, x.options());
  cuda::gather_rows({nn::gpu::type_of(x), elements(source.numel()), elements(x.size(1)),
                     x.const_data_ptr(), source.const_data_ptr<std::int32_t>()},
                    out.mutable_data_ptr(), nn::gpu::stream_of(x));
  return out;
}

at::Tensor activate(const at::Tensor& h, const at::Tensor& weights, const ActivationKind& kind) {
  const cuda::ExpertActivation in = activation_of(h, weights, kind);
  at::Tensor y = at::empty({h.size(0), static_cast<std::int64_t>(in.cols)}, h.options());
  cuda::expert_activation(in, y.mutable_data_ptr(), nn::gpu::stream_of(h));
  return y;
}

ActivationGradients activate_backward(const at::Tensor& h, const at::Tensor& weights,
                                      const at::Tensor& da, const ActivationKind& kind) {
  ActivationGradients result;
  result.value = da;
  result.dh = at::empty(h.sizes(), h.options());
  result.dweights = at::empty({h.size(0)}, weights.options());
  cuda::expert_activation_backward(activation_of(h, weights, kind), da.const_data_ptr(),
                                   result.dh.mutable_data_ptr(), result.value.mutable_data_ptr(),
                                   result.dweights.mutable_data_ptr<float>(),
                                   nn::gpu::stream_of(h));
  return result;
}

}  // namespace gpu

namespace {

cuda::Router router_of(const at::Tensor& logits, const RouterCall& call) {
  const TokenRows& rows = call.rows;
  const std::vector<TokenRange> ranges = rows.part.ranges(rows.tokens);
  cuda::Router router;
  router.experts = call.experts;
  router.tokens = static_cast<std::size_t>(rows.total());
  router.logits = logits.defined() ? logits.const_data_ptr<float>() : nullptr;
  if (rows.total() == 0) return router;
  router.row = static_cast<std::size_t>(rows.tokens);
  router.split = static_cast<std::size_t>(ranges[0].count);
  router.first = ranges[0].position;
  router.second = ranges.size() > 1 ? ranges[1].position : 0;
  router.row_tokens = rows.row_tokens;
  return router;
}

const std::int64_t* counts_pointer(const at::Tensor& counts) {
  return counts.defined() ? counts.const_data_ptr<std::int64_t>() : nullptr;
}

at::Tensor choose_by_kernel(const at::Tensor& logits, const at::Tensor& bias,
                            const RouterCall& call) {
  at::Tensor experts =
      at::empty({logits.size(0), call.experts.per_token}, logits.options().dtype(at::kInt));
  cuda::choose_experts(router_of(logits, call),
                       bias.defined() ? bias.const_data_ptr<float>() : nullptr, kNotRouted,
                       experts.mutable_data_ptr<std::int32_t>(), nn::gpu::stream_of(logits));
  return experts;
}

at::Tensor count_by_kernel(const at::Tensor& experts, const RouterCall& call) {
  const std::int64_t chunks = call.rows.part.chunks();
  at::Tensor counts =
      at::zeros({call.rows.rows, chunks, call.experts.count}, experts.options().dtype(at::kLong));
  cuda::count_experts(
      router_of({}, call), experts.const_data_ptr<std::int32_t>(), kNotRouted,
      static_cast<std::size_t>(chunks),
      reinterpret_cast<unsigned long long*>(counts.mutable_data_ptr<std::int64_t>()),
      nn::gpu::stream_of(experts));
  return counts;
}

Weighed weigh_by_kernel(const at::Tensor& logits, const at::Tensor& experts,
                        const at::Tensor& counts, const RouterCall& call) {
  const Experts& options = call.experts;
  Weighed result;
  result.weights = at::empty(experts.sizes(), logits.options());
  const at::Tensor each = at::empty({logits.size(0), kSums}, logits.options().dtype(at::kDouble));
  cuda::weigh_experts(router_of(logits, call), experts.const_data_ptr<std::int32_t>(),
                      counts_pointer(counts), result.weights.mutable_data_ptr<float>(),
                      each.mutable_data_ptr<double>(), nn::gpu::stream_of(logits));
  result.sums = each.sum(0);
  result.loss = (result.sums[kBalance] * options.balance_loss + result.sums[kZ] * options.z_loss)
                    .to(at::kFloat);
  return result;
}

at::Tensor backward_by_kernel(const at::Tensor& logits, const at::Tensor& experts,
                              const at::Tensor& counts, const at::Tensor& dweights,
                              const at::Tensor& dloss, const RouterCall& call) {
  at::Tensor dlogits = at::empty(logits.sizes(), logits.options());
  const at::Tensor dw = dweights.defined() ? dweights.contiguous() : dweights;
  cuda::weigh_experts_backward(router_of(logits, call), experts.const_data_ptr<std::int32_t>(),
                               counts_pointer(counts),
                               dw.defined() ? dw.const_data_ptr<float>() : nullptr,
                               dloss.defined() ? dloss.const_data_ptr<float>() : nullptr,
                               dlogits.mutable_data_ptr<float>(), nn::gpu::stream_of(logits));
  return dlogits;
}

}  // namespace

const RouterSteps kRouterKernels = {kRouterOperations.input, choose_by_kernel, count_by_kernel,
                                    kRouterOperations.drop,  weigh_by_kernel,  backward_by_kernel};

}  // namespace tessera::experts
