#pragma once

#include <cstddef>

namespace tessera::comm {

// memcpy for large copies between shared segments. The ranges must not overlap, unless they are
// equal. If `bytes` is 0, the pointers are not used.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace tessera::comm
