#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::zero {

// [Note: reading a resharded unit] A parameter's memory may have been freed, or may be about to be
// overwritten. Reading it then throws an error that explains what to do. LibTorch before 2.13
// cannot clear such a mark once it is set: there, freed memory is a null pointer, and the engine
// waits for memory in flight before anything can read it (storages_can_be_marked).
bool storages_can_be_marked();
void forbid_reading(const at::Tensor& tensor, const char* why);
void allow_reading(const at::Tensor& tensor);

// [Note: freeing] Autograd may hold views of a parameter between forward and backward. They share
// its storage, so freeing removes the memory from the storage and gathering puts new memory into
// it. The views stay valid.
void free_storage(const at::Tensor& tensor, const char* why);
// Moves the memory of `from` to `tensor`.
void move_memory(const at::Tensor& tensor, const at::Tensor& from);

// Returns the elements of a tensor in memory order, flat: a view if it is dense, otherwise a copy.
at::Tensor elements_in_memory_order(const at::Tensor& tensor);

// Returns a tensor with the memory of `flat`, which it keeps alive, and a separate storage that can
// be marked.
at::Tensor with_own_storage(const at::Tensor& flat);

}  // namespace tessera::zero
