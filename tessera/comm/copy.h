#pragma once

#include <cstddef>
#include <cstring>

namespace tessera::comm {

// Copies between shared segments. The ranges must not overlap, unless they are equal. If `bytes` is
// 0, the pointers are not used.
//
// Measured on a Neoverse-N1 at 1 to 100 MiB between memfd mappings: memcpy, stores with the
// non-temporal hint (stnp), and a plain loop agree within 2%; zeroing the destination's lines first
// (dc zva) takes 1.5 times as long. On x86_64 the C library's memcpy switches to streaming stores
// above a size that it derives from the shared cache. Hence plain memcpy.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  std::memcpy(to, from, bytes);
}

}  // namespace tessera::comm
