#pragma once

#include <cstddef>
#include <span>

#include "tessera/comm/call.h"
#include "tessera/comm/dtype.h"

namespace tessera::comm::hierarchical {

// [Note: host by host] A reduction in two steps: the values of one host's ranks are combined, in
// rank order, to a partial, and the partials of the hosts, in host order, to the result. Partials
// have the accumulator type (f32 for bf16 and f16), so rounding happens once, at the end; so does
// the division of an average. Integers are exact: i32 and u8 averages are sent as 64-bit sums and
// equal those of a single level. For floating point the order of additions differs from that of a
// single level, but is fixed: the bits depend only on the number of hosts.
class Partial {
 public:
  Partial(DType type, ReduceOp op, int ranks);

  DType type() const noexcept { return partial_; }
  ReduceOp between() const noexcept { return op_ == ReduceOp::avg ? ReduceOp::sum : op_; }

  // Combines the values of one host's ranks.
  void first(std::span<const void* const> values, void* partial, std::size_t count) const;
  // Combines partials to the result. Also accepts one partial that is already combined over hosts.
  void last(std::span<const void* const> partials, void* result, std::size_t count) const;

 private:
  bool wide() const noexcept;  // it is an average of integers of less than 64 bits

  DType type_;
  ReduceOp op_;
  int ranks_;
  DType partial_;
};

}  // namespace tessera::comm::hierarchical
