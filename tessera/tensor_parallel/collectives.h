#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/nn/pass.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::tensor_parallel {

// [Note: tensor parallelism] The ranks of a group share the matrices of a model. Between the layers
// every rank has the same activations x [B, T, C]; inside a pair of layers each rank has its own
// columns of the wide activations:
//   copy_to_region → column-parallel linear → (heads, GELU, …) → row-parallel linear →
//   reduce_from_region
// copy_to_region is the identity, and its backward sums the gradients of x. reduce_from_region sums
// the ranks' results, and its backward is the identity. Each takes one all-reduce of B·T·C
// elements.
//
// [Note: sequence parallelism] The operations between the layers (norms, sums, dropout) can be
// sharded along the sequence: every rank has [B, T / ranks, C]. Then copy_to_region gathers the
// sequence (and reduce-scatters the gradients), and reduce_from_region reduce-scatters it (and
// gathers the gradients): the same bytes. Parameters that are applied to a shard of the sequence
// get a partial gradient: they go through sequence_parallel_params, which sums it. Code outside of
// this module does not need to know.
//
// All are functions with gradients. Tensors are [..., T, C]; labels name the tensor in messages and
// traces, and must be the same on all ranks. With one rank each function returns its argument.
// Selective recomputation keeps the results of the collectives, so it does not repeat any.

// Forward: returns x. Backward: sums the gradients over the ranks.
at::Tensor copy_to(const comm::Group& group, const at::Tensor& x, const std::string& label);
// Same for several tensors of one type, with one all-reduce in backward.
std::vector<at::Tensor> copy_to(const comm::Group& group, const std::vector<at::Tensor>& tensors,
                                const std::string& label);
// Forward: sums over the ranks. Backward: returns the gradient.
at::Tensor reduce_from(const comm::Group& group, const at::Tensor& x, const std::string& label);

// Forward: gathers the shards [..., T / ranks, C] of all ranks to [..., T, C]. Backward: returns
// this rank's shard of the sum of the gradients.
at::Tensor gather_sequence(const comm::Group& group, const at::Tensor& x, const std::string& label);
// Forward: returns this rank's shard of the sum over the ranks. Backward: gathers the shards of all
// ranks. T must be a multiple of the number of ranks.
at::Tensor reduce_scatter_sequence(const comm::Group& group, const at::Tensor& x,
                                   const std::string& label);

// Forward: gathers the columns of all ranks, [..., ranks · C]. Backward: returns this rank's
// columns.
at::Tensor gather_columns(const comm::Group& group, const at::Tensor& x, const std::string& label);

// Forward: x + b on the first rank, x on the others, so that a sum over the ranks includes b once.
// Backward: as if b had been added on every rank. b may be smaller than x (broadcast) and of
// another type; the result has the type of x.
at::Tensor add_once(const comm::Group& group, const at::Tensor& x, const at::Tensor& b);

// Returns the positions of the `rows` rows per sample that this rank has between the layers, for a
// dropout mask.
std::vector<TokenRange> rows_of(const Axis& axis, const nn::Dropout& mask, std::int64_t rows);
// Enters the tensor-parallel region: copy_to, or gather_sequence with a sharded sequence.
at::Tensor copy_to_region(const Axis& axis, const at::Tensor& x, const std::string& label);
// Leaves the tensor-parallel region, from partial sums to the whole result: reduce_from, or
// reduce_scatter_sequence with a sharded sequence.
at::Tensor reduce_from_region(const Axis& axis, const at::Tensor& x, const std::string& label);
// Returns parameters that are applied to a shard of the sequence with a backward that sums their
// gradients. Returns them unchanged if the sequence is not sharded.
std::vector<at::Tensor> sequence_parallel_params(const Axis& axis,
                                                 const std::vector<at::Tensor>& parameters,
                                                 const std::string& label);

// The collectives themselves, without gradients, on tensors [..., T, C]. all_reduce_ changes x,
// which must be contiguous.
at::Tensor all_reduce_(const comm::Group& group, const at::Tensor& x, const std::string& label);
// Gathers shards of the sequence along T.
at::Tensor all_gather(const comm::Group& group, const at::Tensor& part, const std::string& label);
// Returns this rank's shard, along T, of the sum.
at::Tensor reduce_scatter(const comm::Group& group, const at::Tensor& x, const std::string& label);

// Started collective. The result is valid after wait().
struct Pending {
  at::Tensor result;
  comm::Work work;

  at::Tensor wait() const { return work.wait(), result; }
};
// Starts all_gather().
Pending start_all_gather(const comm::Group& group, const at::Tensor& part,
                         const std::string& label);
// Starts reduce_scatter(). Writes to `out`, or to a new tensor if undefined.
Pending start_reduce_scatter(const comm::Group& group, const at::Tensor& x,
                             const std::string& label, at::Tensor out = {});
// Starts all_reduce_(). Writes to `out`, or to x if undefined.
Pending start_all_reduce(const comm::Group& group, const at::Tensor& x, const std::string& label,
                         const at::Tensor& out = {});

// Returns T / ranks for [..., T, C]. Throws UsageError if the number of ranks does not divide T.
std::int64_t own_tokens(const comm::Group& group, const at::Tensor& x, const std::string& label);

}  // namespace tessera::tensor_parallel
