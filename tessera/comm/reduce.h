#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/dtype.h"

namespace tessera::comm {

// What to do with every element. Which pairs (in, out) exist:
//   out == in                                       any type
//   out == accumulator(in)    bf16 -> f32, f16 -> f32     partial sums that travel between hosts
//   in == accumulator(out)    f32 -> bf16, f32 -> f16     the second level, from those partials
struct Reduction {
  DType in = DType::f32;   // type of the sources
  DType out = DType::f32;  // type of the destinations
  ReduceOp op = ReduceOp::sum;
  std::int64_t divisor = 1;  // avg only: divides the sum once, before rounding to `out`
};

// destination[d][i] = round(op over s = 0, 1, …, S-1 of source[s][i]), for every d and i < count.
//
// [Note: the same bits everywhere] Element i of the result depends only on element i of the
// sources and on their order: not on the machine, nor on alignment, on the number of destinations,
// or on how a caller cuts the range into pieces.
//   - bf16 and f16 are widened to f32, combined in f32 in source order, and rounded once, to
//     nearest even. f32 is combined in f32, f64 in f64. Source 0 starts the accumulator (no zero
//     is added), so a sum of -0.0 is -0.0.
//   - Integer sums wrap modulo 2^bits.
//   - avg is a sum and then one division by `divisor`, converted to the accumulator's type.
//     Integers are summed in 64 bits (modulo 2^64), divided with truncation towards zero as in C
//     (u8: unsigned division), and the quotient is then cut to the type.
//   - NaN: a sum with a NaN is NaN; the min and the max of anything with a NaN is NaN. Every NaN in
//     a result of a floating point type is the same one, positive and quiet, with no payload
//     (f32 0x7fc00000, f64 0x7ff8000000000000, bf16 0x7fc0, f16 0x7e00), because processors differ
//     in which payload and sign they keep.
//   - One source, out == in and no division (divisor 1) is a copy of its bytes, NaN included: a
//     group of size 1 is the identity.
//   - min and max order the zeros: -0.0 < +0.0.
//
// A destination may be a source if out == in (the same pointer: in place), or lie apart from it; a
// partial overlap is not allowed. Destinations must not overlap one another. Pointers need no
// alignment.
//
// Throws UsageError: no source, a pair (in, out) that does not exist, a divisor below 1, a divisor
// other than 1 with an operation other than avg.
void reduce(const Reduction& what, std::span<const void* const> sources,
            std::span<void* const> destinations, std::size_t count);

// The same results, bit for bit, one element after another: what the fast paths are tested against.
void reduce_reference(const Reduction& what, std::span<const void* const> sources,
                      std::span<void* const> destinations, std::size_t count);

}  // namespace tessera::comm
