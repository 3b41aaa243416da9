#include "tessera/tensor_parallel/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct CollectiveContext : torch::CustomClassHolder {
  CollectiveContext(comm::Group g, std::string l) : group(std::move(g)), label(std::move(l)) {}
  comm::Group group;
  std::string label;

  std::string backward() const { return label + " backward"; }
};

void remember(AutogradContext* ctx, const comm::Group& group, const std::string& label) {
  ctx->saved_data["context"] =
      c10::IValue::make_capsule(c10::make_intrusive<CollectiveContext>(group, label));
}
const CollectiveContext& context_of(AutogradContext* ctx) {
  return *static_cast<CollectiveContext*>(ctx->saved_data["context"].toCapsule().get());
}

comm::Call call(const std::string& label) {
  comm::Call call;
  call.label = label;
  return call;
}

// Treats [..., T, C] as consecutive buffers [T, C], each divided into shards along T.
comm::Call sequence_call(const at::Tensor& whole, const std::string& label) {
  comm::Call result = call(label);
  const std::int64_t each = whole.size(-2) * whole.size(-1);
  const std::int64_t buffers = each == 0 ? 0 : whole.numel() / each;
  if (buffers > 1) {
    result.parts = std::make_shared<const std::vector<std::size_t>>(
        static_cast<std::size_t>(buffers), static_cast<std::size_t>(each));
  }
  return result;
}

void check_dims(const at::Tensor& x, const std::string& label) {
  if (x.dim() < 2) {
    throw UsageError(str("Sequence parallelism of ", quote(label), ": a tensor with ", x.dim(),
                         " dims. It must be [..., tokens, width]."));
  }
}

}  // namespace

std::int64_t own_tokens(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  check_dims(x, label);
  if (x.size(-2) % group.size() != 0) {
    throw UsageError(str("Sequence parallelism of ", quote(label), ": ", x.size(-2),
                         " tokens. The number must be a multiple of the ", group.size(),
                         " ranks."));
  }
  return x.size(-2) / group.size();
}

namespace {

std::vector<std::int64_t> with_tokens(const at::Tensor& x, std::int64_t tokens) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 2] = tokens;
  return sizes;
}

at::Tensor all_reduced(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty(in.sizes(), in.options());
  group.all_reduce(out, in, call(label)).wait();
  return out;
}

// Sums all tensors with one all-reduce.
tensor_list all_reduced(const comm::Group& group, const tensor_list& tensors,
                        const std::string& label) {
  tensor_list flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  const at::Tensor all = at::cat(flat);
  group.all_reduce(all, call(label)).wait();
  tensor_list result;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return result;
}

// detach() rather than the tensor itself: autograd does not treat the result as a view, and changes
// are still visible in the version that it checks.
struct CopyTo : torch::autograd::Function<CopyTo> {
  static tensor_list forward(AutogradContext* ctx, const comm::Group& group,
                             const std::string& label, at::TensorList tensors) {
    remember(ctx, group, label);
    tensor_list same;
    for (const at::Tensor& tensor : tensors) same.push_back(tensor.detach());
    return same;
  }
  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("copy_to");
    const CollectiveContext& w = context_of(ctx);
    tensor_list result(2);  // gradients of the group and the label
    if (grads.size() == 1) {
      result.push_back(all_reduced(w.group, grads[0], w.backward()));
    } else {
      for (at::Tensor& grad : all_reduced(w.group, grads, w.backward())) result.push_back(grad);
    }
    return result;
  }
};

struct ReduceFrom : torch::autograd::Function<ReduceFrom> {
  static at::Tensor forward(AutogradContext*, const comm::Group& group, const std::string& label,
                            const at::Tensor& x) {
    return nn::keep_in_selective("sum over tp", {x},
                                 [&] { return tensor_list{all_reduced(group, x, label)}; })[0];
  }
  static tensor_list backward(AutogradContext*, tensor_list grads) {
    return {at::Tensor(), at::Tensor(), grads[0]};
  }
};

struct GatherSequence : torch::autograd::Function<GatherSequence> {
  static at::Tensor forward(AutogradContext* ctx, const comm::Group& group,
                            const std::string& label, const at::Tensor& x) {
    remember(ctx, group, label);
    return nn::keep_in_selective("gather over tp", {x},
                                 [&] { return tensor_list{all_gather(group, x, label)}; })[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("gather_sequence");
    const CollectiveContext& w = context_of(ctx);
    return {at::Tensor(), at::Tensor(), reduce_scatter(w.group, grads[0], w.backward())};
  }
};

struct ReduceScatterSequence : torch::autograd::Function<ReduceScatterSequence> {
  static at::Tensor forward(AutogradContext* ctx, const comm::Group& group,
                            const std::string& label, const at::Tensor& x) {
    remember(ctx, group, label);
    return nn::keep_in_selective("scattered sum over tp", {x},
                                 [&] { return tensor_list{reduce_scatter(group, x, label)}; })[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("reduce_scatter_sequence");
    const CollectiveContext& w = context_of(ctx);
    return {at::Tensor(), at::Tensor(), all_gather(w.group, grads[0], w.backward())};
  }
};

struct GatherColumns : torch::autograd::Function<GatherColumns> {
  static at::Tensor forward(AutogradContext* ctx, const comm::Group& group,
                            const std::string& label, const at::Tensor& x) {
    remember(ctx, group, label);
    const at::Tensor in = x.contiguous();
    std::vector<std::int64_t> sizes = in.sizes().vec();
    sizes.insert(sizes.begin(), group.size());
    const at::Tensor all = at::empty(sizes, in.options());
    group.all_gather(all, in, call(label)).wait();
    // [ranks, ..., C] to [..., ranks · C].
    sizes = in.sizes().vec();
    sizes.back() *= group.size();
    return all.movedim(0, -2).reshape(sizes);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const CollectiveContext& w = context_of(ctx);
    const std::int64_t columns = grads[0].size(-1) / w.group.size();
    return {at::Tensor(), at::Tensor(),
            grads[0].narrow(-1, w.group.rank() * columns, columns).contiguous()};
  }
};

struct AddOnce : torch::autograd::Function<AddOnce> {
  static at::Tensor forward(AutogradContext* ctx, bool here, const at::Tensor& x,
                            const at::Tensor& b) {
    ctx->saved_data["sizes"] = b.sizes().vec();
    // In the type of x, as on the ranks that do not add it: the summands must have one type.
    return here ? x + b.to(x.scalar_type()) : x.detach();
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    return {at::Tensor(), grads[0], grads[0].sum_to_size(sizes)};
  }
};

}  // namespace

Pending start_all_reduce(const comm::Group& group, const at::Tensor& x, const std::string& label,
                         const at::Tensor& out) {
  const at::Tensor& sum = out.defined() ? out : x;
  return {sum, group.all_reduce(sum, x, call(label))};
}

Pending start_all_gather(const comm::Group& group, const at::Tensor& part,
                         const std::string& label) {
  check_dims(part, label);
  const at::Tensor in = part.contiguous();
  at::Tensor out = at::empty(with_tokens(in, in.size(-2) * group.size()), in.options());
  return {out, group.all_gather(out, in, sequence_call(out, label))};
}

Pending start_reduce_scatter(const comm::Group& group, const at::Tensor& x,
                             const std::string& label, at::Tensor out) {
  const std::int64_t tokens = own_tokens(group, x, label);
  const at::Tensor in = x.contiguous();
  if (!out.defined()) out = at::empty(with_tokens(in, tokens), in.options());
  return {out, group.reduce_scatter(out, in, sequence_call(in, label))};
}

at::Tensor all_reduce_(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  return start_all_reduce(group, x, label).wait();
}

at::Tensor all_gather(const comm::Group& group, const at::Tensor& part, const std::string& label) {
  return start_all_gather(group, part, label).wait();
}

at::Tensor reduce_scatter(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  return start_reduce_scatter(group, x, label).wait();
}

at::Tensor copy_to(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  return group.size() == 1 ? x : CopyTo::apply(group, label, at::TensorList(x))[0];
}

std::vector<at::Tensor> copy_to(const comm::Group& group, const std::vector<at::Tensor>& tensors,
                                const std::string& label) {
  if (group.size() == 1 || tensors.empty()) return tensors;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() == tensors[0].scalar_type()) continue;
    throw UsageError(str("copy_to of ", quote(label), ": tensors of type ",
                         c10::toString(tensors[0].scalar_type()), " and ",
                         c10::toString(tensor.scalar_type()), ". Pass one type at a time."));
  }
  return CopyTo::apply(group, label, at::TensorList(tensors));
}

at::Tensor reduce_from(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  return group.size() == 1 ? x : ReduceFrom::apply(group, label, x);
}

at::Tensor gather_sequence(const comm::Group& group, const at::Tensor& x,
                           const std::string& label) {
  return group.size() == 1 ? x : GatherSequence::apply(group, label, x);
}

at::Tensor reduce_scatter_sequence(const comm::Group& group, const at::Tensor& x,
                                   const std::string& label) {
  return group.size() == 1 ? x : ReduceScatterSequence::apply(group, label, x);
}

at::Tensor gather_columns(const comm::Group& group, const at::Tensor& x, const std::string& label) {
  return group.size() == 1 ? x : GatherColumns::apply(group, label, x);
}

at::Tensor add_once(const comm::Group& group, const at::Tensor& x, const at::Tensor& b) {
  return group.size() == 1 ? x + b.to(x.scalar_type()) : AddOnce::apply(group.rank() == 0, x, b);
}

std::vector<TokenRange> rows_of(const Axis& axis, const nn::Dropout& mask, std::int64_t rows) {
  if (!axis.sequence) return mask.rows(0, rows, rows);
  return mask.rows(axis.rank() * rows, rows, axis.size() * rows);
}

at::Tensor copy_to_region(const Axis& axis, const at::Tensor& x, const std::string& label) {
  return axis.sequence ? gather_sequence(axis.group, x, label) : copy_to(axis.group, x, label);
}

at::Tensor reduce_from_region(const Axis& axis, const at::Tensor& x, const std::string& label) {
  return axis.sequence ? reduce_scatter_sequence(axis.group, x, label)
                       : reduce_from(axis.group, x, label);
}

std::vector<at::Tensor> sequence_parallel_params(const Axis& axis,
                                                 const std::vector<at::Tensor>& parameters,
                                                 const std::string& label) {
  return axis.sequence ? copy_to(axis.group, parameters, label) : parameters;
}

}  // namespace tessera::tensor_parallel
