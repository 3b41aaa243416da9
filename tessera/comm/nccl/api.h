#pragma once

#include <cstddef>
#include <string>

namespace tessera::comm::nccl {

// Declarations of the part of NCCL's C interface that this backend uses, which has been stable
// since 2.14. NCCL is loaded at run time, without its header and without linking, so every build
// has this backend.

using Comm = struct OpaqueComm*;

struct UniqueId {
  char bytes[128];
};

enum class Result : int { success = 0, remote_error = 6, in_progress = 7 };

enum class Type : int { u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };

enum class Combine : int { sum = 0, max = 2, min = 3, avg = 4 };

using Stream = void*;  // a cudaStream_t

struct Api {
  Result (*get_version)(int* version);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank)(Comm*, int ranks, UniqueId, int rank);
  Result (*comm_destroy)(Comm);
  Result (*comm_abort)(Comm);
  Result (*comm_get_async_error)(Comm, Result*);
  Result (*all_reduce)(const void* in, void* out, std::size_t, Type, Combine, Comm, Stream);
  Result (*reduce_scatter)(const void* in, void* out, std::size_t out_count, Type, Combine, Comm,
                           Stream);
  Result (*all_gather)(const void* in, void* out, std::size_t in_count, Type, Comm, Stream);
  Result (*broadcast)(const void* in, void* out, std::size_t, Type, int root, Comm, Stream);
  Result (*reduce)(const void* in, void* out, std::size_t, Type, Combine, int root, Comm, Stream);
  Result (*send)(const void* in, std::size_t, Type, int peer, Comm, Stream);
  Result (*recv)(void* out, std::size_t, Type, int peer, Comm, Stream);
  Result (*group_start)();
  Result (*group_end)();
  // Since 2.19; null in older versions.
  Result (*comm_register)(Comm, void* data, std::size_t bytes, void** handle);
  Result (*comm_deregister)(Comm, void* handle);
  // Since 2.18; null in older versions. A null configuration inherits the parent's.
  Result (*comm_split)(Comm parent, int color, int key, Comm*, void* configuration);

  // Throws an Error with the call and NCCL's error text unless the result is success.
  void check(Result result, const char* call) const;
};

struct Library {
  bool loaded = false;
  std::string problem;  // why it is not loaded
  std::string version;  // "2.28.9"
  int number = 0;       // 22809
  Api api{};
};

// Returns the NCCL of this process: the one that LibTorch has loaded, otherwise libnccl.so.2 as
// found by the dynamic loader.
const Library& library();

}  // namespace tessera::comm::nccl
