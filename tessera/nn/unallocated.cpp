#include "tessera/nn/unallocated.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

namespace tessera::nn {
namespace {

at::Tensor without_memory(at::IntArrayRef sizes, at::IntArrayRef strides,
                          const at::TensorOptions& options) {
  return at::for_blob(nullptr, sizes)
      .strides(strides)
      .options(options.requires_grad(std::nullopt))
      .target_device(options.device())
      .make_tensor();
}

}  // namespace

at::Tensor unallocated(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor shape = at::empty(sizes, at::device(at::kMeta));
  return without_memory(sizes, shape.strides(), options);
}

bool is_unallocated(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_meta() || tensor.numel() == 0) {
    return false;
  }
  // Bypasses torch's checks, because the storage may be marked as not readable.
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
}

at::Tensor new_parameter(at::IntArrayRef sizes, const ParamOptions& options) {
  return options.allocate ? at::zeros(sizes, options.tensors) : unallocated(sizes, options.tensors);
}

void deallocate(at::Tensor parameter) {
  const at::TensorOptions options = at::device(parameter.device()).dtype(parameter.scalar_type());
  parameter.set_data(parameter.is_non_overlapping_and_dense()
                         ? without_memory(parameter.sizes(), parameter.strides(), options)
                         : unallocated(parameter.sizes(), options));
}

}  // namespace tessera::nn
