#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <utility>

namespace tessera {

// Converts a signed count, such as a number of ranks or a result of read(2). Asserts count >= 0.
template <std::integral Number>
constexpr std::size_t as_size(Number number) {
  assert(std::cmp_greater_equal(number, 0));
  return static_cast<std::size_t>(number);
}

// Returns values[i] for a signed i: nth(ranks, rank). Asserts that i is in bounds.
template <typename Values, std::integral Index>
constexpr decltype(auto) nth(Values& values, Index i) {
  assert(std::cmp_greater_equal(i, 0) && std::cmp_less(i, std::size(values)));
  return values[static_cast<std::size_t>(i)];
}

}  // namespace tessera
