// Products of sorted rows with the matrices of experts. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/experts/activation.h"

namespace tessera::experts {

// Parameters of one expert; biases may be undefined.
struct ExpertParams {
  at::Tensor fc, fc_bias, proj2, proj2_bias;
};

// Rows that the experts of this rank compute, sorted by expert.
struct SortedRows {
  at::Tensor x;        // [R, hidden]
  at::Tensor source;   // int32 [rows]: the row of x that each sorted row is a copy of
  at::Tensor weights;  // fp32 [rows]: factors of the activations and of the second bias
  at::Tensor counts;   // int64 [experts] on the device of x: rows of each expert
};

struct ExpertKind {
  ActivationKind activation = {};
  // False: the second bias is added by another rank, which has other columns of proj2. Its gradient
  // is computed here too.
  bool adds_bias = true;
};

struct ExpertOutputs {
  at::Tensor h;    // [rows, rows of fc]: products with fc
  at::Tensor out;  // [rows, hidden]
};
ExpertOutputs expert_outputs(const SortedRows& rows, const std::vector<ExpertParams>& experts,
                             const ExpertKind& kind);

struct ExpertGradients {
  at::Tensor dx;        // [rows, hidden], of the sorted rows
  at::Tensor dweights;  // fp32 [rows]
  // Four for each expert, in the order of ExpertParams. Undefined if it has no rows (if their
  // number is known on the host) or needs no gradient.
  std::vector<at::Tensor> params;
};
// dy [R, hidden]: gradient of the rows that were made from the rows of x.
ExpertGradients expert_gradients(const at::Tensor& dy, const at::Tensor& h, const SortedRows& rows,
                                 const std::vector<ExpertParams>& experts, const ExpertKind& kind);

// Versions for matrices on a GPU, with one grouped product for all experts. The host does not wait
// for the numbers of rows, so experts without rows get gradients of zeros.
ExpertOutputs grouped_outputs(const SortedRows& rows, const std::vector<ExpertParams>& experts,
                              const ExpertKind& kind);
ExpertGradients grouped_gradients(const at::Tensor& dy, const at::Tensor& h, const SortedRows& rows,
                                  const std::vector<ExpertParams>& experts, const ExpertKind& kind);

}  // namespace tessera::experts
