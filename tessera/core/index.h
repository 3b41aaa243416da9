#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <utility>

namespace tessera {

// A number of things, from one that is signed: ranks, bytes that read(2) returned. A debug build
// stops at a negative one.
template <std::integral Number>
constexpr std::size_t as_size(Number number) {
  assert(std::cmp_greater_equal(number, 0));
  return static_cast<std::size_t>(number);
}

// values[i] for a signed i: nth(ranks, rank). A debug build stops where i is out of bounds.
template <typename Values, std::integral Index>
constexpr decltype(auto) nth(Values& values, Index i) {
  assert(std::cmp_greater_equal(i, 0) && std::cmp_less(i, std::size(values)));
  return values[static_cast<std::size_t>(i)];
}

}  // namespace tessera
