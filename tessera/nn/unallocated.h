#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Parameters without memory: they have sizes, type and device, but a null storage pointer. For
// models that fit only when sharded: the engine initializes each rank's shard itself
// (zero::Options::initial).

// Returns a parameter of these sizes without memory.
at::Tensor unallocated(at::IntArrayRef sizes, const at::TensorOptions& options = {});
// Returns whether the tensor has no memory. False for an empty tensor, which needs none.
bool is_unallocated(const at::Tensor& tensor);

// Options with which a layer creates its parameters: as zeros, or without memory.
struct ParamOptions {
  ParamOptions(const at::TensorOptions& t = {})
      : tensors(t) {}  // NOLINT: implicit, so that TensorOptions convert
  // Returns options for parameters without memory.
  static ParamOptions unallocated(const at::TensorOptions& t = {}) {
    ParamOptions options(t);
    options.allocate = false;
    return options;
  }

  at::TensorOptions tensors;
  bool allocate = true;
};
// Returns a parameter created with these options.
at::Tensor new_parameter(at::IntArrayRef sizes, const ParamOptions& options);

// Frees the memory of a parameter, which keeps its sizes and strides. Tensors that share its
// storage keep it.
void deallocate(at::Tensor parameter);

}  // namespace tessera::nn
