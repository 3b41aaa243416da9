// Products of all experts at once, for GPUs. Tests run them on the CPU.

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/experts/dispatch.h"
#include "tessera/experts/products.h"
#include "tessera/nn/gradient_place.h"

namespace tessera::experts {
namespace {

// Returns tensors of equal sizes as one tensor [number, …] that shares their memory, if they lie at
// equal distances in one storage, as engines lay them out. Otherwise undefined.
at::Tensor view_together(const std::vector<at::Tensor>& all) {
  const at::Tensor& first = all[0];
  const std::int64_t distance =
      all.size() < 2 ? first.numel() : all[1].storage_offset() - first.storage_offset();
  bool regular = distance >= first.numel() && first.is_contiguous();
  for (std::size_t e = 1; e < all.size(); ++e) {
    regular =
        regular && all[e].is_contiguous() && all[e].storage().is_alias_of(first.storage()) &&
        all[e].storage_offset() == first.storage_offset() + static_cast<std::int64_t>(e) * distance;
  }
  if (!regular) return {};
  std::vector<std::int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(all.size()));
  strides.insert(strides.begin(), distance);
  return first.as_strided(sizes, strides, first.storage_offset());
}

// Returns the matrices of all experts as one tensor [experts, …].
at::Tensor together(const std::vector<ExpertParams>& experts, at::Tensor ExpertParams::*which) {
  std::vector<at::Tensor> all;
  for (const ExpertParams& each : experts) all.push_back((each.*which).detach());
  const at::Tensor view = view_together(all);
  return view.defined() ? view : at::stack(all);
}

at::Tensor ends_of(const SortedRows& rows) { return rows.counts.cumsum(0, at::kInt); }

// The expert of each row. Rows after the last expert get the last one.
struct ExpertOfRows {
  at::Tensor expert;  // int64 [rows]
  at::Tensor beyond;  // bool [rows, 1]: belongs to no expert
};
ExpertOfRows expert_of_rows(const SortedRows& rows) {
  const at::Tensor ends = rows.counts.cumsum(0);
  const at::Tensor row = at::arange(rows.source.numel(), ends.options());
  return {at::searchsorted(ends, row, /*out_int32=*/false, /*right=*/true)
              .clamp_max_(rows.counts.numel() - 1),
          row.ge(ends.select(0, -1)).unsqueeze(1)};
}

at::Tensor sums_by_expert(const at::Tensor& rows, const ExpertOfRows& of, std::int64_t count) {
  return at::zeros({count, rows.size(1)}, rows.options())
      .index_add_(0, of.expert, rows.masked_fill(of.beyond, 0));
}

// Returns whether at::_grouped_mm supports the operand: it needs 16-byte steps between rows.
bool is_grouped_operand(const at::Tensor& x) {
  const auto step = 16 / static_cast<std::int64_t>(x.element_size());
  bool whole = x.scalar_type() != at::kDouble &&
               reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  for (const std::int64_t stride : x.strides())
    whole = whole && (stride == 1 || stride % step == 0);
  return whole;
}

// Returns the products of each group: of the rows of a with the matrices of b [groups, …], or of
// the columns of a with the rows of b, [groups, …]. `ends` as in at::_grouped_mm.
at::Tensor multiply_groups(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  if (is_grouped_operand(a) && is_grouped_operand(b)) return at::_grouped_mm(a, b, ends);
  // One product after the other. This waits for the GPU.
  const at::Tensor host = ends.cpu();
  const auto* const end = host.const_data_ptr<std::int32_t>();
  const bool by_rows = b.dim() == 3;
  at::Tensor out = by_rows ? at::empty({a.size(0), b.size(2)}, a.options())
                           : at::empty({ends.numel(), a.size(0), b.size(1)}, a.options());
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < ends.numel(); ++e) {
    const std::int64_t n = end[e] - first;
    if (by_rows) {
      out.narrow(0, first, n).copy_(at::mm(a.narrow(0, first, n), b.select(0, e)));
    } else {
      out.select(0, e).copy_(at::mm(a.narrow(1, first, n), b.narrow(0, first, n)));
    }
    first = end[e];
  }
  return out;
}

// Writes the gradients of one parameter of each expert, [experts, …], to the engine's places, or
// sets them in `results`: that of expert e has index 4 · e.
void put(const std::vector<ExpertParams>& experts, at::Tensor ExpertParams::*which,
         const at::Tensor& gradients, at::Tensor* results) {
  std::vector<at::Tensor> places;
  std::vector<std::size_t> of;  // expert of each place
  std::vector<bool> adds;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const at::Tensor& param = experts[e].*which;
    if (!param.requires_grad()) continue;
    const nn::GradientPlace::Place place =
        param.is_contiguous() ? nn::take_place(param) : nn::GradientPlace::Place();
    if (place.to.defined()) {
      places.push_back(place.to);
      of.push_back(e);
      adds.push_back(place.add);
      results[4 * e] = place.to.detach();
    } else {
      results[4 * e] = gradients.select(0, static_cast<std::int64_t>(e)).to(param.scalar_type());
    }
  }
  if (places.size() == experts.size() && std::equal(adds.begin() + 1, adds.end(), adds.begin())) {
    const at::Tensor all = view_together(places);
    if (all.defined()) {
      adds[0] ? all.add_(gradients) : all.copy_(gradients);
      return;
    }
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    const at::Tensor own = gradients.select(0, static_cast<std::int64_t>(of[i]));
    adds[i] ? places[i].add_(own) : places[i].copy_(own);
  }
}

}  // namespace

ExpertOutputs grouped_outputs(const SortedRows& rows, const std::vector<ExpertParams>& experts,
                              const ExpertKind& kind) {
  const at::Tensor ends = ends_of(rows);
  const bool biases = experts[0].fc_bias.defined();
  const ExpertOfRows of = biases ? expert_of_rows(rows) : ExpertOfRows();
  ExpertOutputs result;
  {
    const at::Tensor x = rows_of(rows.x, rows.source);
    result.h = multiply_groups(x, together(experts, &ExpertParams::fc).transpose(1, 2), ends);
  }
  if (biases) {
    const at::Tensor bias = together(experts, &ExpertParams::fc_bias);
    result.h.add_(at::index_select(bias, 0, of.expert));
  }
  const at::Tensor a = activate(result.h, rows.weights, kind.activation);
  result.out = multiply_groups(a, together(experts, &ExpertParams::proj2).transpose(1, 2), ends);
  if (biases && kind.adds_bias) {
    const at::Tensor bias = together(experts, &ExpertParams::proj2_bias);
    result.out.add_(at::index_select(bias, 0, of.expert) * rows.weights.unsqueeze(1));
  }
  return result;
}

ExpertGradients grouped_gradients(const at::Tensor& dy, const at::Tensor& h, const SortedRows& rows,
                                  const std::vector<ExpertParams>& experts,
                                  const ExpertKind& kind) {
  const at::Tensor ends = ends_of(rows);
  const bool biases = experts[0].fc_bias.defined();
  ExpertGradients result;
  result.params.resize(4 * experts.size());
  at::Tensor dh;
  {
    const at::Tensor d = rows_of(dy, rows.source);
    const at::Tensor da = multiply_groups(d, together(experts, &ExpertParams::proj2), ends);
    const ActivationGradients activation = activate_backward(h, rows.weights, da, kind.activation);
    dh = activation.dh;
    result.dweights = activation.dweights;
    put(experts, &ExpertParams::proj2, multiply_groups(d.t(), activation.value, ends),
        &result.params[2]);
    if (biases) {
      const ExpertOfRows of = expert_of_rows(rows);
      const auto count = static_cast<std::int64_t>(experts.size());
      const at::Tensor wide = d.to(rows.weights.scalar_type());
      put(experts, &ExpertParams::fc_bias, sums_by_expert(dh.to(wide.scalar_type()), of, count),
          &result.params[1]);
      put(experts, &ExpertParams::proj2_bias,
          sums_by_expert(wide * rows.weights.unsqueeze(1), of, count), &result.params[3]);
      if (kind.adds_bias) {
        const at::Tensor bias = together(experts, &ExpertParams::proj2_bias).to(wide.scalar_type());
        result.dweights.add_((wide * at::index_select(bias, 0, of.expert)).sum(1));
      }
    }
  }
  {
    const at::Tensor x = rows_of(rows.x, rows.source);
    put(experts, &ExpertParams::fc, multiply_groups(dh.t(), x, ends), &result.params[0]);
  }
  result.dx = multiply_groups(dh, together(experts, &ExpertParams::fc), ends);
  return result;
}

}  // namespace tessera::experts
