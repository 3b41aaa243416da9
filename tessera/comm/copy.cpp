#include "tessera/comm/copy.h"

#include <cstring>

namespace tessera::comm {

// Measured on a Neoverse-N1 at 1 to 100 MiB between memfd mappings: memcpy, stores with the
// non-temporal hint (stnp), and a plain loop agree within 2%; zeroing the destination's lines first
// (dc zva) costs 1.5 times as much. On x86_64 the C library's memcpy switches to streaming stores
// by itself, at a size it derives from the shared cache. So memcpy it is.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  std::memcpy(to, from, bytes);
}

}  // namespace tessera::comm
