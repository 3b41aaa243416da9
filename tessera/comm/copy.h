#pragma once

#include <cstddef>

namespace tessera::comm {

// memcpy for large copies between shared segments. The ranges must not overlap, unless they are the
// same range. Zero bytes: the pointers may be anything.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace tessera::comm
