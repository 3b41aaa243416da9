// Products of all experts at once, for GPUs. Tests run them on the CPU.

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "tessera/experts/products.h"
#include "tessera/nn/gpu.h"

namespace tessera::experts {
namespace {

// Returns the matrices of all experts as one tensor [experts, …]. It shares their memory if they
// lie at equal distances in one storage, as engines lay them out.
at::Tensor together(const std::vector<ExpertParams>& experts, at::Tensor ExpertParams::*which) {
  std::vector<at::Tensor> all;
  for (const ExpertParams& each : experts) all.push_back((each.*which).detach());
  const at::Tensor& first = all[0];
  const std::int64_t distance =
      all.size() < 2 ? first.numel() : all[1].storage_offset() - first.storage_offset();
  bool regular = distance >= first.numel() && first.is_contiguous();
  for (std::size_t e = 1; e < all.size(); ++e) {
    regular =
        regular && all[e].is_contiguous() && all[e].storage().is_alias_of(first.storage()) &&
        all[e].storage_offset() == first.storage_offset() + static_cast<std::int64_t>(e) * distance;
  }
  if (!regular) return at::stack(all);
  std::vector<std::int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(all.size()));
  strides.insert(strides.begin(), distance);
  return first.as_strided(sizes, strides, first.storage_offset());
}

// Ends of the rows of each expert, and the expert of each row. Rows after the last expert get the
// last one.
struct Groups {
  at::Tensor ends;    // int32 [experts]
  at::Tensor expert;  // int64 [rows]
  at::Tensor beyond;  // bool [rows, 1]: belongs to no expert
};
Groups groups_of(const SortedRows& rows) {
  Groups result;
  const at::Tensor ends = rows.counts.cumsum(0);
  result.ends = ends.to(at::kInt);
  const at::Tensor row = at::arange(rows.source.numel(), ends.options());
  result.expert = at::searchsorted(ends, row, /*out_int32=*/false, /*right=*/true)
                      .clamp_max_(rows.counts.numel() - 1);
  result.beyond = row.ge(ends.select(0, -1)).unsqueeze(1);
  return result;
}

at::Tensor sums_by_expert(const at::Tensor& rows, const Groups& groups) {
  return at::zeros({groups.ends.numel(), rows.size(1)}, rows.options())
      .index_add_(0, groups.expert, rows.masked_fill(groups.beyond, 0));
}

at::Tensor put(const at::Tensor& param, const at::Tensor& gradient) {
  const nn::gpu::ParamGradient place(param);
  if (!place) return {};
  at::Tensor to = place.to();
  place.add() ? to.add_(gradient) : to.copy_(gradient);
  return place.result();
}

}  // namespace

ExpertOutputs grouped_outputs(const SortedRows& rows, const std::vector<ExpertParams>& experts,
                              const ExpertKind& kind) {
  const Groups groups = groups_of(rows);
  const bool biases = experts[0].fc_bias.defined();
  ExpertOutputs result;
  {
    const at::Tensor x = at::index_select(rows.x, 0, rows.source);
    const at::Tensor fc = together(experts, &ExpertParams::fc);
    result.h = at::_grouped_mm(x, fc.transpose(1, 2), groups.ends);
  }
  if (biases) {
    const at::Tensor bias = together(experts, &ExpertParams::fc_bias);
    result.h.add_(at::index_select(bias, 0, groups.expert));
  }
  const at::Tensor a = activate(result.h, rows.weights, kind.activation);
  const at::Tensor proj2 = together(experts, &ExpertParams::proj2);
  result.out = at::_grouped_mm(a, proj2.transpose(1, 2), groups.ends);
  if (biases && kind.adds_bias) {
    const at::Tensor bias = together(experts, &ExpertParams::proj2_bias);
    result.out.add_(at::index_select(bias, 0, groups.expert) * rows.weights.unsqueeze(1));
  }
  return result;
}

ExpertGradients grouped_gradients(const at::Tensor& dy, const at::Tensor& h, const SortedRows& rows,
                                  const std::vector<ExpertParams>& experts,
                                  const ExpertKind& kind) {
  const Groups groups = groups_of(rows);
  const bool biases = experts[0].fc_bias.defined();
  ExpertGradients result;
  result.params.resize(4 * experts.size());
  const at::Tensor d = at::index_select(dy, 0, rows.source);
  at::Tensor dh, dproj2;
  {
    const at::Tensor proj2 = together(experts, &ExpertParams::proj2);
    const at::Tensor da = at::_grouped_mm(d, proj2, groups.ends);
    ActivationGradients activation = activate_backward(h, rows.weights, da, kind.activation);
    dh = std::move(activation.dh);
    result.dweights = std::move(activation.dweights);
    dproj2 = at::_grouped_mm(d.t(), activation.value, groups.ends);
  }
  at::Tensor dfc_bias, dproj2_bias;
  if (biases) {
    const at::Tensor wide = d.to(rows.weights.scalar_type());
    dfc_bias = sums_by_expert(dh.to(wide.scalar_type()), groups);
    dproj2_bias = sums_by_expert(wide * rows.weights.unsqueeze(1), groups);
    if (kind.adds_bias) {
      const at::Tensor bias = together(experts, &ExpertParams::proj2_bias).to(wide.scalar_type());
      result.dweights.add_((wide * at::index_select(bias, 0, groups.expert)).sum(1));
    }
  }
  const at::Tensor dfc =
      at::_grouped_mm(dh.t(), at::index_select(rows.x, 0, rows.source), groups.ends);
  result.dx = at::_grouped_mm(dh, together(experts, &ExpertParams::fc), groups.ends);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const auto i = static_cast<std::int64_t>(e);
    at::Tensor* const grads = &result.params[4 * e];
    grads[0] = put(experts[e].fc, dfc.select(0, i));
    grads[2] = put(experts[e].proj2, dproj2.select(0, i));
    if (!biases) continue;
    grads[1] = put(experts[e].fc_bias, dfc_bias.select(0, i));
    grads[3] = put(experts[e].proj2_bias, dproj2_bias.select(0, i));
  }
  return result;
}

}  // namespace tessera::experts
