// Oracle for reduce(): scalar arithmetic, one element at a time, written to be compared with
// [Note: the same bits everywhere] in reduce.h.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/reduce_internal.h"
#include "tessera/core/half.h"

namespace tessera::comm {
namespace {

template <class T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(void* to, std::size_t i, T value) {
  std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
}

template <class T>
T read(DType type, const void* from, std::size_t i) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::bf16) return from_bf16(load<std::uint16_t>(from, i));
    if (type == DType::f16) return from_f16(load<std::uint16_t>(from, i));
  }
  return load<T>(from, i);
}

template <class T>
void write(DType type, void* to, std::size_t i, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  }
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::bf16) return store(to, i, to_bf16(value));
    if (type == DType::f16) return store(to, i, to_f16(value));
  }
  store(to, i, value);
}

template <class T>
bool less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) return std::signbit(a) && !std::signbit(b);
  }
  return a < b;
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::min || op == ReduceOp::max) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    }
    return less(a, b) == (op == ReduceOp::min) ? a : b;
  }
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {  // unsigned, so that it wraps; 64 bits, because u8 and i32 would be promoted to int
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
}

// Wide is the type of the sum: T, or a 64-bit integer for averages of integers.
template <class T, class Wide>
T reduce_element(const Reduction& what, std::span<const void* const> sources, std::size_t i) {
  Wide total = read<T>(what.in, sources[0], i);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    total = combine<Wide>(what.op, total, read<T>(what.in, sources[s], i));
  }
  if (what.op == ReduceOp::avg) total = total / static_cast<Wide>(what.divisor);
  return static_cast<T>(total);
}

template <class T, class Average = T>
void reduce_all(const Reduction& what, std::span<const void* const> sources,
                std::span<void* const> destinations, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T result = what.op == ReduceOp::avg ? reduce_element<T, Average>(what, sources, i)
                                              : reduce_element<T, T>(what, sources, i);
    for (void* to : destinations) write(what.out, to, i, result);
  }
}

}  // namespace

void reduce_reference(const Reduction& what, std::span<const void* const> sources,
                      std::span<void* const> destinations, std::size_t count) {
  check_reduction(what, sources.size());
  if (is_copy(what, sources.size())) {
    for (void* to : destinations) copy_bytes(to, sources[0], count * size_of(what.in));
    return;
  }
  switch (accumulator(what.in)) {
    case DType::f64: return reduce_all<double>(what, sources, destinations, count);
    case DType::i32:
      return reduce_all<std::int32_t, std::int64_t>(what, sources, destinations, count);
    case DType::i64: return reduce_all<std::int64_t>(what, sources, destinations, count);
    case DType::u8:
      return reduce_all<std::uint8_t, std::uint64_t>(what, sources, destinations, count);
    default: return reduce_all<float>(what, sources, destinations, count);
  }
}

}  // namespace tessera::comm
