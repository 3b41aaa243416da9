#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Parameters without memory: sizes, type and device are there, the storage has a null pointer. For
// models that fit only sharded: the engine fills each rank's shard by itself
// (zero::Options::initial).

// A parameter of these sizes without memory.
at::Tensor unallocated(at::IntArrayRef sizes, const at::TensorOptions& options = {});
// False for an empty tensor, which has nothing to allocate.
bool is_unallocated(const at::Tensor& tensor);

// How a layer makes its parameters: as zeros, or without memory.
struct ParamOptions {
  ParamOptions(const at::TensorOptions& t = {}) : tensors(t) {}  // NOLINT: they are most of it
  // Without memory.
  static ParamOptions unallocated(const at::TensorOptions& t = {}) {
    ParamOptions options(t);
    options.allocate = false;
    return options;
  }

  at::TensorOptions tensors;
  bool allocate = true;
};
// A parameter as the options say.
at::Tensor new_parameter(at::IntArrayRef sizes, const ParamOptions& options);

// Frees the memory of a parameter, which keeps its sizes and strides. Others that share its storage
// keep theirs.
void deallocate(at::Tensor parameter);

}  // namespace tessera::nn
