#pragma once

#include <cstddef>
#include <span>

#include "tessera/comm/dtype.h"

namespace tessera::comm::hierarchical {

// [Note: host by host] A reduction in two steps: the values of one host's ranks become a partial,
// in rank order, and the partials of the hosts become the result, in host order. Partials are of
// the type that sums are kept in (f32 for bf16 and f16), so rounding happens once, at the end; so
// does the division of an average. Integers are exact: i32 and u8 averages travel as 64-bit sums,
// and give what one level gives. For floating point the order of adding is another than over one
// level, but always the same: the bits depend on how many hosts there are, and on nothing else.
class Partial {
 public:
  Partial(DType type, ReduceOp op, int ranks);

  DType type() const noexcept { return partial_; }
  ReduceOp between() const noexcept { return op_ == ReduceOp::avg ? ReduceOp::sum : op_; }

  void first(std::span<const void* const> values, void* partial, std::size_t count) const;
  // Also of a single partial that the hosts have combined already.
  void last(std::span<const void* const> partials, void* result, std::size_t count) const;

 private:
  bool wide() const noexcept;  // an average of integers of less than 64 bits

  DType type_;
  ReduceOp op_;
  int ranks_;
  DType partial_;
};

}  // namespace tessera::comm::hierarchical
