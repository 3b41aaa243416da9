#include "tessera/comm/reduce.h"

#include <array>
#include <string>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce_internal.h"
#include "tessera/core/cpu.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace N_NEON {
Kernel find_kernel(const Reduction& what);
}
namespace N_SSSE3 {
Kernel find_kernel(const Reduction& what);
}
namespace N_AVX2 {
Kernel find_kernel(const Reduction& what);
}
namespace {

struct UsableReduceSets {
  std::array<ReduceSet, 2> sets;
  std::size_t count = 0;
};

UsableReduceSets find_usable_reduce_sets() {
  UsableReduceSets found;
#if defined(__aarch64__)
  found.sets[found.count++] = {"NEON", N_NEON::find_kernel};
#elif defined(__x86_64__)
  if (has_ssse3()) found.sets[found.count++] = {"SSSE3", N_SSSE3::find_kernel};
  if (has_avx2()) found.sets[found.count++] = {"AVX2", N_AVX2::find_kernel};
#endif
  return found;
}

}  // namespace

std::span<const ReduceSet> usable_reduce_sets() {
  static const UsableReduceSets usable = find_usable_reduce_sets();
  return {usable.sets.data(), usable.count};
}

void check_reduction(const Reduction& what, std::size_t sources) {
  if (sources == 0) {
    throw UsageError("reduction without sources: pass at least one");
  }
  if (what.divisor < 1) {
    throw UsageError("reduction with divisor " + std::to_string(what.divisor) +
                     ": must be the number of ranks, at least 1");
  }
  if (what.op != ReduceOp::avg && what.divisor != 1) {
    throw UsageError("reduction " + std::string(name(what.op)) + " with divisor " +
                     std::to_string(what.divisor) + ": must be 1, because only avg divides");
  }
  if (what.out != what.in && what.out != accumulator(what.in) && what.in != accumulator(what.out)) {
    throw UsageError("reduction from " + std::string(name(what.in)) + " to " + name(what.out) +
                     ": the types must be equal, or f32 and one of bf16 and f16");
  }
}

void reduce_with(FindKernel find_kernel, const Reduction& what,
                 std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count) {
  check_reduction(what, sources.size());
  if (is_copy(what, sources.size())) {
    for (void* to : destinations) copy_bytes(to, sources[0], count * size_of(what.in));
    return;
  }
  // With one source every operation is x / divisor. As avg, an arithmetic instruction always runs,
  // which canonicalizes NaNs (see [Note: one NaN]).
  Reduction chosen = what;
  if (sources.size() == 1) chosen.op = ReduceOp::avg;
  find_kernel(chosen)({.source = sources.data(),
                       .destination = destinations.data(),
                       .sources = sources.size(),
                       .destinations = destinations.size(),
                       .count = count,
                       .divisor = what.divisor});
}

void reduce(const Reduction& what, std::span<const void* const> sources,
            std::span<void* const> destinations, std::size_t count) {
  const auto sets = usable_reduce_sets();
  if (sets.empty()) return reduce_reference(what, sources, destinations, count);
  reduce_with(sets.back().find_kernel, what, sources, destinations, count);
}

}  // namespace tessera::comm
