#include "tessera/comm/reduce.h"

#include <string>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce_internal.h"
#include "tessera/core/errors.h"

#define TESSERA_REDUCE_SET baseline
#define TESSERA_REDUCE_BYTES 16
#include "tessera/comm/reduce_kernels.h"

namespace tessera::comm {

void check_reduction(const Reduction& what, std::size_t sources) {
  if (sources == 0) {
    throw UsageError("a reduction got no source: give at least one");
  }
  if (what.divisor < 1) {
    throw UsageError("a reduction got the divisor " + std::to_string(what.divisor) +
                     ": give the number of ranks, at least 1");
  }
  if (what.op != ReduceOp::avg && what.divisor != 1) {
    throw UsageError("the reduction " + std::string(name(what.op)) + " got the divisor " +
                     std::to_string(what.divisor) + ": only avg divides, leave it at 1");
  }
  if (what.out != what.in && what.out != accumulator(what.in) && what.in != accumulator(what.out)) {
    throw UsageError("there is no reduction from " + std::string(name(what.in)) + " to " +
                     name(what.out) + ": give the same type twice, or f32 with bf16 or f16");
  }
}

void reduce_with(Kernel (*find_kernel)(const Reduction&), const Reduction& what,
                 std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count) {
  check_reduction(what, sources.size());
  if (is_copy(what, sources.size())) {
    for (void* to : destinations) copy_bytes(to, sources[0], count * size_of(what.in));
    return;
  }
  // One source: every operation is x / divisor. Written so, there is always an arithmetic
  // instruction to make a NaN the one NaN (see [Note: one NaN]).
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
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return reduce_with(avx2::find_kernel, what, sources, destinations, count);
  }
#endif
  reduce_with(baseline::find_kernel, what, sources, destinations, count);
}

}  // namespace tessera::comm
