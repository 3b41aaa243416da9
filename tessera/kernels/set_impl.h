// Table of all kernels of one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include "tessera/kernels/decode_impl.h"
#include "tessera/kernels/gelu_impl.h"
#include "tessera/kernels/layer_norm_impl.h"
#include "tessera/kernels/moments_impl.h"
#include "tessera/kernels/norm_impl.h"
#include "tessera/kernels/optimizer_impl.h"
#include "tessera/kernels/sets.h"
#include "tessera/kernels/softmax_impl.h"

namespace tessera::kernels::HWY_NAMESPACE {

extern const KernelSet set;  // for kernels.cpp
const KernelSet set = {
    .name = HWY_STR(HWY_NAMESPACE),
    .update = UpdateTable<rules::Rule>::kernels,
    .round_to_bf16_stochastic = round_to_bf16_stochastic,
    .sum_of_squares = sum_of_squares,
    .decode_moments = decode_moments,
    .encode_moments = encode_moments,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .softmax_causal_forward = softmax_causal_forward,
    .softmax_causal_backward = softmax_causal_backward,
    .cross_entropy_rows = cross_entropy_rows,
    .widen = widen,
    .narrow = narrow,
    .few_rows_linear = few_rows_linear,
    .cached_attention = cached_attention,
    .rms_norm_rows = rms_norm_rows,
    .silu = silu,
    .soft_cap = soft_cap,
};

}  // namespace tessera::kernels::HWY_NAMESPACE
