#include "tessera/comm/hierarchical/partial.h"

#include <cstdint>
#include <cstring>

#include "tessera/comm/reduce.h"

namespace tessera::comm::hierarchical {
namespace {

template <typename T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(void* to, std::size_t i, T value) {
  std::memcpy(static_cast<std::byte*>(to) + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
void widen(std::span<const void* const> values, void* partial, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t sum = 0;  // cannot overflow with less than 2^32 ranks
    for (const void* value : values) sum += load<T>(value, i);
    store(partial, i, sum);
  }
}

template <typename T>
void divide(std::span<const void* const> partials, void* result, std::size_t count, int ranks) {
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t sum = 0;
    for (const void* partial : partials) sum += load<std::int64_t>(partial, i);
    store(result, i, static_cast<T>(sum / ranks));
  }
}

}  // namespace

Partial::Partial(DType type, ReduceOp op, int ranks)
    : type_(type), op_(op), ranks_(ranks), partial_(type) {
  // min and max return one of the values, so they need no wider type.
  if (op == ReduceOp::sum || op == ReduceOp::avg) partial_ = accumulator(type);
  if (wide()) partial_ = DType::i64;
}

bool Partial::wide() const noexcept {
  return op_ == ReduceOp::avg && (type_ == DType::i32 || type_ == DType::u8);
}

void Partial::first(std::span<const void* const> values, void* partial, std::size_t count) const {
  if (wide()) {
    return type_ == DType::u8 ? widen<std::uint8_t>(values, partial, count)
                              : widen<std::int32_t>(values, partial, count);
  }
  void* to[] = {partial};
  reduce({type_, partial_, between(), 1}, values, to, count);
}

void Partial::last(std::span<const void* const> partials, void* result, std::size_t count) const {
  if (wide()) {
    return type_ == DType::u8 ? divide<std::uint8_t>(partials, result, count, ranks_)
                              : divide<std::int32_t>(partials, result, count, ranks_);
  }
  void* to[] = {result};
  reduce({partial_, type_, op_, op_ == ReduceOp::avg ? ranks_ : 1}, partials, to, count);
}

}  // namespace tessera::comm::hierarchical
