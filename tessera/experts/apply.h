// Dispatch of tokens to experts, their products, and the sum of the results, as one operation.
// Internal.
#pragma once

#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/experts/products.h"

namespace tessera::experts {

struct ExpertsCall {
  std::int64_t count = 0;  // experts of the model
  comm::Group ep = {};
  ExpertKind kind = {};
  bool biases = false;
  std::string label;
};

// Returns Σ weight · expert(x) over the experts of each token, [N, hidden], for tokens x [N,
// hidden], with `experts` and `weights` of Routed and the experts of this rank. Experts without
// rows get an undefined gradient, on a GPU one of zeros. Collective over ep.
//
// saves, for M rows that this rank's experts compute (on one rank the pairs that are sent, on a GPU
// always N · k): x (shared), slots and weights, 8·N·k bytes, and the products with fc, M · rows of
// fc. With several ranks of ep: slots, 4·N·k bytes, received rows, M·hidden, and their weights, 4·M
// bytes, instead. Selective recomputation keeps these (without x) and the result, N·hidden.
at::Tensor apply_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& experts,
                         const std::vector<ExpertParams>& params, const ExpertsCall& call);

}  // namespace tessera::experts
