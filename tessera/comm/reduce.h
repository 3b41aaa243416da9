#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/call.h"
#include "tessera/comm/dtype.h"

namespace tessera::comm {

// Element-wise reduction. Supported pairs (in, out):
//   out == in                                             any type
//   out == accumulator(in)    bf16 -> f32, f16 -> f32     partial sums sent between hosts
//   in == accumulator(out)    f32 -> bf16, f32 -> f16     final result of these partial sums
struct Reduction {
  DType in = DType::f32;   // type of the sources
  DType out = DType::f32;  // type of the destinations
  ReduceOp op = ReduceOp::sum;
  std::int64_t divisor = 1;  // avg only: divides the sum once, before rounding to `out`
};

// destination[d][i] = round(op over s = 0, 1, …, S-1 of source[s][i]), for every d and i < count.
//
// [Note: the same bits everywhere] Element i of the result depends only on element i of the sources
// and on their order. It does not depend on the machine, on alignment, on the number of
// destinations, or on the way a caller divides the range into pieces.
//   - bf16 and f16 are widened to f32, combined in f32 in source order, and rounded once, to
//     nearest even. f32 is combined in f32, f64 in f64. Source 0 starts the accumulator (no zero
//     is added), so a sum of -0.0 is -0.0.
//   - Integer sums wrap modulo 2^bits.
//   - avg is a sum and then one division by `divisor`, converted to the accumulator's type.
//     Integers are summed in 64 bits (modulo 2^64), divided with truncation toward zero as in C
//     (u8: unsigned division), and the quotient is then truncated to the type.
//   - NaN: a sum, min or max with a NaN operand is NaN. Every NaN in a floating-point result is
//     the same one, positive and quiet, with no payload (f32 0x7fc00000, f64 0x7ff8000000000000,
//     bf16 0x7fc0, f16 0x7e00), because processors differ in the payload and sign they keep.
//   - With one source, out == in and divisor 1, the bytes are copied, NaNs included: in a group of
//     one rank a reduction is the identity.
//   - min and max order the zeros: -0.0 < +0.0.
//
// A destination may equal a source (in place) if out == in; partial overlaps are not allowed.
// Destinations must not overlap one another. Pointers need no alignment.
//
// Throws UsageError if there is no source, if the pair (in, out) is not supported, if the divisor
// is below 1, or if it is not 1 and the operation is not avg.
void reduce(const Reduction& what, std::span<const void* const> sources,
            std::span<void* const> destinations, std::size_t count);

// Scalar implementation with bitwise equal results. Tests compare reduce() with it.
void reduce_reference(const Reduction& what, std::span<const void* const> sources,
                      std::span<void* const> destinations, std::size_t count);

}  // namespace tessera::comm
