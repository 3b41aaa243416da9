#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/pass.h"

namespace tessera::nn {

// Restrictions beyond the causal mask, and dropout of the probabilities.
struct AttentionOptions {
  std::int64_t window = 0;  // number of keys up to and including the query's own; 0: no limit
  at::Tensor document_starts = {};  // int32 [B, T] as in Pass; undefined: one document
  at::Tensor document_bounds = {};  // int32 [documents + 1] as in Pass, for a GPU
  std::int64_t longest_document = 0;
  Dropout dropout = {};
  std::int64_t first_head = 0;  // index of the first head here in the whole model
  // Number of tokens of whole rows without padding, which numbers the probabilities for dropout. 0:
  // T.
  std::int64_t row_tokens = 0;
  // The tensor has whole rows, although the pass gives this rank a part of them.
  bool whole_rows = false;
  // Factor of the scores. 0: 1 / sqrt(head width). With another factor, or with a cap, ATen's
  // operations compute the scores and keep them for backward: 4·B·heads·T² bytes and more.
  double scale = 0;
  double cap = 0;  // c: scores become c · tanh(score / c) before the mask. 0 disables it.

  bool any() const { return window > 0 || document_starts.defined() || dropout.rate > 0; }
};

}  // namespace tessera::nn
