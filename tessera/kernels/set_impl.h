// All kernels of one instruction set: see [Note: sets] in simd.h.
#pragma once

#include "tessera/kernels/gelu_impl.h"
#include "tessera/kernels/layer_norm_impl.h"
#include "tessera/kernels/norm_impl.h"
#include "tessera/kernels/optimizer_impl.h"
#include "tessera/kernels/softmax_impl.h"

#define TESSERA_NAME_OF(set) #set
#define TESSERA_NAME(set) TESSERA_NAME_OF(set)

namespace tessera::kernels::TESSERA_KERNEL_SET {

const KernelSet set = {
    .name = TESSERA_NAME(TESSERA_KERNEL_SET),
    .update = UpdateTable<rules::Rule>::kernels,
    .round_to_bf16_stochastic = round_to_bf16_stochastic,
    .sum_of_squares = sum_of_squares,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .softmax_causal_forward = softmax_causal_forward,
    .softmax_causal_backward = softmax_causal_backward,
    .cross_entropy_rows = cross_entropy_rows,
    .widen = widen,
    .narrow = narrow,
};

}  // namespace tessera::kernels::TESSERA_KERNEL_SET
