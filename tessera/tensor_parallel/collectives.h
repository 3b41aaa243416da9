#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/axes.h"

namespace tessera::tensor_parallel {

// [Note: tensor parallelism] The ranks of a group share the matrices of a model. Between the layers
// every rank has the same activations x [B, T, C]; inside a pair of layers each has its own columns
// of the wide activations:
//   copy_to_region → column-parallel linear → (heads, GELU, …) → row-parallel linear →
//   reduce_from_region
// copy_to_region is the identity and sums the gradients of x in backward; reduce_from_region sums
// what the ranks made, and is the identity in backward: one all-reduce of B·T·C elements each.
//
// [Note: sequence parallelism] What lies between the layers (norms, sums, dropout) can be cut along
// the sequence: every rank has [B, T / ranks, C] of it. Then copy_to_region gathers the sequence
// (and reduce-scatters the gradients), reduce_from_region reduce-scatters it (and gathers the
// gradients): the same bytes. Parameters that work on a part of the sequence see a part of their
// gradient: they go through sequence_parallel_params, which sums it. Nobody outside needs to know.
//
// All are functions with gradients. Tensors are [..., T, C]; labels name the tensor in messages and
// traces, and are the same on all ranks. With one rank each returns its argument. Selective
// recomputation keeps the results of the collectives, so it does not repeat any.

// Forward: x. Backward: the sum of the gradients over the ranks.
at::Tensor copy_to(const comm::Group& group, const at::Tensor& x, const std::string& label);
// The same for tensors of one type at once: one all-reduce in backward.
std::vector<at::Tensor> copy_to(const comm::Group& group, const std::vector<at::Tensor>& tensors,
                                const std::string& label);
// Forward: the sum over the ranks. Backward: the gradient.
at::Tensor reduce_from(const comm::Group& group, const at::Tensor& x, const std::string& label);

// Forward: the parts [..., T / ranks, C] of all ranks as [..., T, C]. Backward: this rank's part of
// the sum of the gradients.
at::Tensor gather_sequence(const comm::Group& group, const at::Tensor& x, const std::string& label);
// Forward: this rank's part of the sum over the ranks. Backward: the parts of all ranks. T must be
// a multiple of the ranks.
at::Tensor reduce_scatter_sequence(const comm::Group& group, const at::Tensor& x,
                                   const std::string& label);

// Forward: the columns of all ranks, [..., ranks · C]. Backward: this rank's columns.
at::Tensor gather_columns(const comm::Group& group, const at::Tensor& x, const std::string& label);

// Forward: x + b on the first rank, x on the others, so that a sum over the ranks has b once.
// Backward: as if b had been added everywhere. b may be smaller than x (broadcast), and of another
// type, which the result does not take.
at::Tensor add_once(const comm::Group& group, const at::Tensor& x, const at::Tensor& b);

// The ranks that share a model's matrices, whether they also share the sequence between them, and
// whether the linears' products run while their collectives do: [Note: overlap].
struct Axis {
  comm::Group group = {};
  bool sequence = false;
  bool overlap = false;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  // Sizes of a mesh that has this axis alone, and the coordinate of this rank in it, for functions
  // that take a ParamSpec.
  Axes axes() const { return {{tessera::Axis::tp, size()}}; }
  Coordinate coordinate() const { return {{tessera::Axis::tp, rank()}}; }
};
// Into the tensor-parallel region, and out of it: copy_to and reduce_from, or with a cut sequence
// gather_sequence and reduce_scatter_sequence.
at::Tensor copy_to_region(const Axis& axis, const at::Tensor& x, const std::string& label);
// Out of it: partial sums in, the whole result out.
at::Tensor reduce_from_region(const Axis& axis, const at::Tensor& x, const std::string& label);
// For parameters that work on a part of the sequence, if it is cut; else they stay as they are.
std::vector<at::Tensor> sequence_parallel_params(const Axis& axis,
                                                 const std::vector<at::Tensor>& parameters,
                                                 const std::string& label);

// The collectives themselves, without gradients, on tensors [..., T, C]. all_reduce_ changes x,
// and needs it contiguous.
at::Tensor all_reduce_(const comm::Group& group, const at::Tensor& x, const std::string& label);
// Parts of the sequence, side by side along T.
at::Tensor all_gather(const comm::Group& group, const at::Tensor& part, const std::string& label);
// This rank's part along T of the sum.
at::Tensor reduce_scatter(const comm::Group& group, const at::Tensor& x, const std::string& label);

// The same, begun: the result is there after wait().
struct Pending {
  at::Tensor result;
  comm::Work work;

  at::Tensor wait() const { return work.wait(), result; }
};
// all_gather(), begun.
Pending start_all_gather(const comm::Group& group, const at::Tensor& part,
                         const std::string& label);
// `out`: where to put it, or a new tensor.
Pending start_reduce_scatter(const comm::Group& group, const at::Tensor& x,
                             const std::string& label, at::Tensor out = {});
// `out`: likewise, or in place of x.
Pending start_all_reduce(const comm::Group& group, const at::Tensor& x, const std::string& label,
                         const at::Tensor& out = {});

// T / ranks, of [..., T, C]. Throws UsageError if the ranks do not divide it.
std::int64_t own_tokens(const comm::Group& group, const at::Tensor& x, const std::string& label);

}  // namespace tessera::tensor_parallel
