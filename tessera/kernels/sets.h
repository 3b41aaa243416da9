// Kernels compiled once per instruction set. Internal; tests run every set.
#pragma once

#include <span>

#include "tessera/kernels/decode.h"
#include "tessera/kernels/layers.h"
#include "tessera/kernels/moments.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::kernels {

// Update kernel of one alternative of rules::Rule; `rule` points to that alternative.
using UpdateKernel = void (*)(const void* rule, const rules::Step&, const ParamShard&, float* a,
                              float* b);
struct UpdateKernels {
  UpdateKernel of[std::variant_size_v<rules::Rule>];  // in the order of the variant's alternatives
};

// Kernels of one instruction set, see [Note: sets] in core/simd.h: each public kernel under its
// name.
struct KernelSet {
  const char* name;
  UpdateKernels update;
  decltype(&kernels::round_to_bf16_stochastic) round_to_bf16_stochastic;
  decltype(&kernels::sum_of_squares) sum_of_squares;
  decltype(&kernels::decode_moments) decode_moments;
  decltype(&kernels::encode_moments) encode_moments;
  decltype(&kernels::gelu_forward) gelu_forward;
  decltype(&kernels::gelu_backward) gelu_backward;
  decltype(&kernels::layer_norm_forward) layer_norm_forward;
  decltype(&kernels::layer_norm_backward) layer_norm_backward;
  decltype(&kernels::softmax_causal_forward) softmax_causal_forward;
  decltype(&kernels::softmax_causal_backward) softmax_causal_backward;
  decltype(&kernels::cross_entropy_rows) cross_entropy_rows;
  decltype(&kernels::widen) widen;
  decltype(&kernels::narrow) narrow;
  decltype(&kernels::few_rows_linear) few_rows_linear;
  decltype(&kernels::cached_attention) cached_attention;
  decltype(&kernels::rms_norm_rows) rms_norm_rows;
  decltype(&kernels::silu) silu;
  decltype(&kernels::soft_cap) soft_cap;
};

// Returns the sets that this processor can run, fastest last.
std::span<const KernelSet* const> usable_sets();

}  // namespace tessera::kernels
