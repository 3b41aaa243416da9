// Order of token-expert pairs by expert, and rows in that order. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::experts {

// [Note: sorted rows] Pair t · k + i is the i-th expert of token t. The pairs that are sent are
// sorted by expert once, those of an expert in the order of their tokens; row s of a matrix of
// sorted rows belongs to the s-th pair. On the CPU there are as many rows as pairs that are sent.
// Elsewhere this number is known on the device only, so there are N · k rows, and those after the
// last expert hold numbers without meaning, which never reach a result.
struct SortedPairs {
  at::Tensor slots;   // int32 [N, k]: row of each pair, or -1
  at::Tensor order;   // int32 [rows]: pair of each row
  at::Tensor counts;  // int64 [count]: rows of each expert
};
// experts: int32 [N, k], Routed::experts.
SortedPairs sort_pairs(const at::Tensor& experts, std::int64_t count);
// Returns SortedPairs::order for `rows` rows.
at::Tensor order_of(const at::Tensor& slots, std::int64_t rows);
// The same two functions by ATen's operations, for tensors that are not on the CPU.
SortedPairs sort_pairs_by_operations(const at::Tensor& experts, std::int64_t count);
at::Tensor order_of_by_operations(const at::Tensor& slots, std::int64_t rows);

// Returns the sum of the rows of each token's pairs, [N, columns], in the order of the pairs, in
// fp32 (fp64 for fp64), rounded once.
at::Tensor combine(const at::Tensor& rows, const at::Tensor& slots);
at::Tensor combine_by_operations(const at::Tensor& rows, const at::Tensor& slots);
// Returns a matrix with the rows of x at `source`, int32 [rows].
at::Tensor rows_of(const at::Tensor& x, const at::Tensor& source);
// Returns values[slot] of each pair, or 0: [N, k].
at::Tensor values_of_pairs(const at::Tensor& values, const at::Tensor& slots);

}  // namespace tessera::experts
