#include "tessera/checkpoint/convert_dtype.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/half.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

template <typename T>
T get(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void put(std::byte* data, std::int64_t index, T value) {
  std::memcpy(data + static_cast<std::size_t>(index) * sizeof(T), &value, sizeof(T));
}

// Conversions go through fp32, which can represent every value of the other two types.
std::uint32_t widened(DType from, std::uint16_t half) {
  return std::bit_cast<std::uint32_t>(from == DType::bf16 ? from_bf16(half) : from_f16(half));
}

// Same as core/half.h, except that a NaN, quiet or not, keeps the part of its payload that fits: a
// value that was widened narrows to the same bits.
std::uint16_t narrowed(DType to, std::uint32_t bits) {
  const bool bf16 = to == DType::bf16;
  const std::uint32_t infinity = bf16 ? 0x7f80u : 0x7c00u;
  const std::uint32_t payload = (bits >> (bf16 ? 16 : 13)) & (0x7fffu - infinity);
  if ((bits & 0x7fffffffu) > 0x7f800000u && payload != 0) {
    return static_cast<std::uint16_t>(((bits >> 16) & 0x8000u) | infinity | payload);
  }
  const auto value = std::bit_cast<float>(bits);
  return bf16 ? to_bf16(value) : to_f16(value);
}

bool is_converted(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

std::uint32_t load_f32(DType dtype, const std::byte* data, std::int64_t index) {
  if (dtype == DType::f32) return get<std::uint32_t>(data, index);
  const auto bits = get<std::uint16_t>(data, index);
  return widened(dtype, bits);
}

}  // namespace

std::string stored_name(DType dtype) {
  std::string text(name(dtype));
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

bool convertible(DType from, DType to) {
  return from == to || (is_converted(from) && is_converted(to));
}

std::int64_t convert(DType from, const std::byte* source, DType to, std::byte* target,
                     std::int64_t count, Rounding rounding) {
  if (from == to) {
    if (count > 0) std::memcpy(target, source, static_cast<std::size_t>(count * bytes_of(from)));
    return count;
  }
  if (!convertible(from, to)) {
    throw UsageError(str("cannot convert ", stored_name(from), " to ", stored_name(to)));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = load_f32(from, source, i);
    if (to == DType::f32) {
      put(target, i, bits);
      continue;
    }
    const std::uint16_t narrow = narrowed(to, bits);
    const std::uint32_t back = widened(to, narrow);
    if (rounding == Rounding::exact && back != bits) return i;
    put(target, i, narrow);
  }
  return count;
}

double value_at(DType dtype, const std::byte* data, std::int64_t index) {
  switch (dtype) {
    case DType::f64: return get<double>(data, index);
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return static_cast<double>(std::bit_cast<float>(load_f32(dtype, data, index)));
    case DType::i32: return get<std::int32_t>(data, index);
    case DType::i16: return get<std::int16_t>(data, index);
    case DType::i8: return get<std::int8_t>(data, index);
    case DType::u32: return get<std::uint32_t>(data, index);
    case DType::u16: return get<std::uint16_t>(data, index);
    case DType::u8:
    case DType::boolean: return get<std::uint8_t>(data, index);
    case DType::i64:
    case DType::u64:
    case DType::f8_e4m3:
    case DType::f8_e5m2: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tessera::checkpoint
