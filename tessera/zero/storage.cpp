#include "tessera/zero/storage.h"

#include <ATen/ops/from_blob.h>

namespace tessera::zero {
namespace {

template <class Storage>
constexpr bool kMarkCanBeTakenBack = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

template <class Storage>
void mark(Storage& storage, const char* why) {
  if constexpr (kMarkCanBeTakenBack<Storage>) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);  // does not release data
  }
}

template <class Storage>
void unmark(Storage& storage) {
  if constexpr (kMarkCanBeTakenBack<Storage>) storage.clear_data_ptr_access_error_msg_();
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

bool storages_can_be_marked() { return kMarkCanBeTakenBack<c10::StorageImpl>; }
void forbid_reading(const at::Tensor& tensor, const char* why) { mark(storage_of(tensor), why); }
void allow_reading(const at::Tensor& tensor) { unmark(storage_of(tensor)); }

void free_storage(const at::Tensor& tensor, const char* why) {
  storage_of(tensor).set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  forbid_reading(tensor, why);
}

void move_memory(const at::Tensor& tensor, const at::Tensor& from) {
  storage_of(tensor).set_data_ptr_noswap(
      storage_of(from).set_data_ptr(c10::DataPtr(nullptr, from.device())));
  allow_reading(tensor);
}

at::Tensor elements_in_memory_order(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach();
  if (!values.is_non_overlapping_and_dense()) return values.contiguous().view(-1);
  return values.as_strided({values.numel()}, {1}, values.storage_offset());
}

at::Tensor with_own_storage(const at::Tensor& flat) {
  return at::for_blob(flat.data_ptr(), flat.sizes())
      .deleter([flat](void*) {})
      .options(flat.options())
      .target_device(flat.device())
      .make_tensor();
}

}  // namespace tessera::zero
