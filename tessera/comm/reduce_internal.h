#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/reduce.h"

namespace tessera::comm {

// Throws UsageError if reduce() does not support the reduction.
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

// Returns the kernel of one instruction set for a reduction that has passed check_reduction(). See
// [Note: sets] in core/simd.h.
using FindKernel = Kernel (*)(const Reduction& what);
struct ReduceSet {
  const char* name = nullptr;
  FindKernel find_kernel = nullptr;
};

// Returns the sets that this processor supports, fastest last. Empty on x86_64 without SSSE3, where
// reduce() calls reduce_reference().
std::span<const ReduceSet> usable_reduce_sets();

// Same as reduce(), with the kernels of one set.
void reduce_with(FindKernel find_kernel, const Reduction& what,
                 std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count);

}  // namespace tessera::comm
