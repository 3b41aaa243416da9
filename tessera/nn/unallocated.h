#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Parameters without memory: sizes, type and device are there, the storage has a null pointer. For
// models that fit only sharded: the engine fills each rank's shard by itself
// (zero::Options::initial).

at::Tensor unallocated(at::IntArrayRef sizes, const at::TensorOptions& options = {});
bool is_unallocated(const at::Tensor& tensor);

// Frees the memory of a parameter, which keeps its sizes and strides. Others that share its storage
// keep theirs.
void deallocate(at::Tensor parameter);

}  // namespace tessera::nn
