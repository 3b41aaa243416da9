#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/reduce.h"

namespace tessera::comm {

// Throws UsageError unless reduce.h allows it.
void check_reduction(const Reduction& what, std::size_t sources);

inline bool is_copy(const Reduction& what, std::size_t sources) {
  return sources == 1 && what.in == what.out && what.divisor == 1;
}

struct KernelArgs {
  const void* const* source = nullptr;  // [sources]
  void* const* destination = nullptr;   // [destinations]
  std::size_t sources = 0;              // at least 1
  std::size_t destinations = 0;
  std::size_t count = 0;
  std::int64_t divisor = 1;
};

using Kernel = void (*)(const KernelArgs&);

// A namespace per instruction set (see reduce_kernels.h). `what` has passed check_reduction.
namespace baseline {  // what every processor of the architecture has: SSE2, NEON
Kernel find_kernel(const Reduction& what);
}
namespace avx2 {  // x86_64 with AVX2 and F16C
Kernel find_kernel(const Reduction& what);
}

// reduce() with the kernels of one set.
void reduce_with(Kernel (*find_kernel)(const Reduction&), const Reduction& what,
                 std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count);

}  // namespace tessera::comm
