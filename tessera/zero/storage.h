#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::zero {

// [Note: reading a resharded unit] A parameter's memory may be gone, or about to be overwritten.
// Whoever reads it then gets an error that says what to do. LibTorch before 2.13 cannot take such a
// mark back once it is set: there memory that is gone is a null pointer, and memory in flight is
// waited for before anybody can read it (storages_can_be_marked).
bool storages_can_be_marked();
void forbid_reading(const at::Tensor& tensor, const char* why);
void allow_reading(const at::Tensor& tensor);

// [Note: freeing] Autograd may hold views of a parameter between forward and backward. They share
// its storage, so freeing takes the memory out of the storage and gathering puts new memory in: the
// views never notice.
void free_storage(const at::Tensor& tensor, const char* why);
// The memory of `from`, which loses it.
void move_memory(const at::Tensor& tensor, const at::Tensor& from);

// The elements of a tensor in memory order, flat: its own memory where that is dense, else a copy.
at::Tensor elements_in_memory_order(const at::Tensor& tensor);

// The same memory as `flat`, which it keeps alive, in a storage of its own to mark.
at::Tensor with_own_storage(const at::Tensor& flat);

}  // namespace tessera::zero
