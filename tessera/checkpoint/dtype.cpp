#include "tessera/checkpoint/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

struct Row {
  std::string_view name;
  std::int64_t size;
};
constexpr std::array<Row, 15> kTypes = {{{"F64", 8},
                                         {"F32", 4},
                                         {"F16", 2},
                                         {"BF16", 2},
                                         {"F8_E4M3", 1},
                                         {"F8_E5M2", 1},
                                         {"I64", 8},
                                         {"I32", 4},
                                         {"I16", 2},
                                         {"I8", 1},
                                         {"U64", 8},
                                         {"U32", 4},
                                         {"U16", 2},
                                         {"U8", 1},
                                         {"BOOL", 1}}};
const Row& row(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)]; }

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

// All three go through the bits of an fp32, which has every value of the other two.
std::uint32_t from_bf16(std::uint16_t bits) { return static_cast<std::uint32_t>(bits) << 16; }

std::uint32_t from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
  if (exponent == 31) return sign | 0x7f800000u | fraction << 13;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign | std::bit_cast<std::uint32_t>(value);
  }
  return sign | (exponent + 112) << 23 | fraction << 13;
}

std::uint16_t to_bf16(std::uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN stays one
    const auto top = static_cast<std::uint16_t>(bits >> 16);
    return (bits & 0x007f0000u) != 0 ? top : static_cast<std::uint16_t>(top | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

std::uint16_t to_f16(std::uint32_t bits) {
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    const std::uint32_t fraction = (magnitude >> 13) & 0x3ffu;
    return static_cast<std::uint16_t>(sign | 0x7c00u | (fraction != 0 ? fraction : 0x200u));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // overflows
  if (magnitude < 0x38800000u) {
    // A subnormal: a whole number of 2^-24, rounded to even as the processor does.
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

bool is_converted(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

std::uint32_t load_f32(DType dtype, const std::byte* data, std::int64_t index) {
  if (dtype == DType::f32) return get<std::uint32_t>(data, index);
  const auto bits = get<std::uint16_t>(data, index);
  return dtype == DType::bf16 ? from_bf16(bits) : from_f16(bits);
}

}  // namespace

std::int64_t size_of(DType dtype) { return row(dtype).size; }
std::string_view name(DType dtype) { return row(dtype).name; }

std::optional<DType> find_dtype(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == upper) return static_cast<DType>(i);
  }
  return std::nullopt;
}

DType parse_dtype(std::string_view text) {
  if (const auto found = find_dtype(text)) return *found;
  std::vector<std::string> names;
  for (const Row& type : kTypes) names.emplace_back(type.name);
  throw UsageError(str("got the type ", quote(text), ", wanted one of ", join(names, ", "),
                       did_you_mean(text, names)));
}

bool convertible(DType from, DType to) {
  return from == to || (is_converted(from) && is_converted(to));
}

std::int64_t convert(DType from, const std::byte* source, DType to, std::byte* target,
                     std::int64_t count, Rounding rounding) {
  if (from == to) {
    if (count > 0) std::memcpy(target, source, static_cast<std::size_t>(count * size_of(from)));
    return count;
  }
  if (!convertible(from, to)) {
    throw UsageError(str("cannot turn ", name(from), " into ", name(to)));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = load_f32(from, source, i);
    if (to == DType::f32) {
      put(target, i, bits);
      continue;
    }
    const std::uint16_t narrow = to == DType::bf16 ? to_bf16(bits) : to_f16(bits);
    const std::uint32_t back = to == DType::bf16 ? from_bf16(narrow) : from_f16(narrow);
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
