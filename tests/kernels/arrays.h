// Arrays of either type for kernel tests, and comparison within rounding.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/core/half.h"
#include "tessera/kernels/sets.h"

namespace tessera::kernels {

// Array followed by guard elements, which no kernel may write.
class Array {
 public:
  static constexpr std::size_t guard = 64;
  Array(Type type, std::size_t n) : type_(type), n_(n), bytes_((n + guard) * size_of(type), 0xa5) {}
  Type type() const { return type_; }
  std::size_t size() const { return n_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  void* at(std::size_t i) { return bytes_.data() + i * size_of(type_); }
  float operator[](std::size_t i) const {
    if (type_ == Type::f32) {
      float value;
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return value;
    }
    std::uint16_t value;
    std::memcpy(&value, bytes_.data() + 2 * i, 2);
    return from_bf16(value);
  }
  void set(std::size_t i, float value) {
    if (type_ == Type::f32) {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    } else {
      const std::uint16_t rounded = to_bf16(value);
      std::memcpy(bytes_.data() + 2 * i, &rounded, 2);
    }
  }
  bool operator==(const Array& other) const { return bytes_ == other.bytes_; }
  bool guarded() const {
    for (std::size_t i = n_ * size_of(type_); i < bytes_.size(); ++i) {
      if (bytes_[i] != 0xa5) return false;
    }
    return true;
  }

 private:
  Type type_;
  std::size_t n_;
  std::vector<unsigned char> bytes_;
};

inline Array random_array(Type type, std::size_t n, std::mt19937& random, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  Array array(type, n);
  for (std::size_t i = 0; i < n; ++i) array.set(i, normal(random));
  return array;
}

// Expects each value within `relative` of the larger of the expected value and `unit` (the
// magnitude of the numbers it was computed from). bf16 may additionally differ by one rounding
// step.
inline void expect_close(const Array& got, const Array& wanted, double relative, double unit,
                         const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  EXPECT_TRUE(got.guarded()) << what;
  const double step = got.type() == Type::bf16 ? 0x1p-7 : 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double size = std::abs(double{wanted[i]});
    const double allowed = relative * std::max(size, unit) + step * size;
    ASSERT_NEAR(got[i], wanted[i], allowed) << what << "[" << i << "] of " << got.size();
  }
}

constexpr Type both_types[] = {Type::f32, Type::bf16};
inline const std::vector<std::size_t> odd_sizes = {0,   1,   2,   3,   4,   5,   7,   8,  9,
                                                   15,  16,  17,  31,  33,  63,  64,  65, 100,
                                                   127, 128, 129, 200, 255, 257, 1000};

}  // namespace tessera::kernels
