#include "tessera/kernels/dropout.h"

#include <algorithm>

#include "tessera/core/half.h"
#include "tessera/core/philox.h"

namespace tessera::kernels {
namespace {

constexpr std::size_t kBlocks = 32;  // Philox blocks that are computed together

// Writes the words of blocks [first, first + kBlocks), four per block.
void dropout_words(const Dropout& args, std::uint64_t first, std::uint32_t* words) {
  std::uint32_t a[kBlocks], b[kBlocks], c[kBlocks], d[kBlocks];
  for (std::size_t i = 0; i < kBlocks; ++i) {
    a[i] = static_cast<std::uint32_t>(first + i);
    b[i] = static_cast<std::uint32_t>((first + i) >> 32);
    c[i] = static_cast<std::uint32_t>(args.stream);
    d[i] = static_cast<std::uint32_t>(args.stream >> 32);
  }
  auto low = static_cast<std::uint32_t>(args.seed),
       high = static_cast<std::uint32_t>(args.seed >> 32);
  for (int round = 0; round < philox::rounds; ++round) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::uint64_t x = std::uint64_t{philox::multiplier[0]} * a[i];
      const std::uint64_t y = std::uint64_t{philox::multiplier[1]} * c[i];
      a[i] = static_cast<std::uint32_t>(y >> 32) ^ b[i] ^ low;
      b[i] = static_cast<std::uint32_t>(y);
      c[i] = static_cast<std::uint32_t>(x >> 32) ^ d[i] ^ high;
      d[i] = static_cast<std::uint32_t>(x);
    }
    low += philox::weyl[0];
    high += philox::weyl[1];
  }
  for (std::size_t i = 0; i < kBlocks; ++i) {
    words[4 * i] = a[i], words[4 * i + 1] = b[i];
    words[4 * i + 2] = c[i], words[4 * i + 3] = d[i];
  }
}

void scale_dropped(float* x, const std::uint32_t* words, std::uint32_t least, float scale,
                   std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) x[i] = words[i] >= least ? x[i] * scale : 0.0f;
}

void scale_dropped(std::uint16_t* x, const std::uint32_t* words, std::uint32_t least, float scale,
                   std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = words[i] >= least ? to_bf16(from_bf16(x[i]) * scale) : std::uint16_t{0};
  }
}

template <class T>
void drop_part(const Dropout& args, std::uint64_t row, std::size_t first, T* x, std::size_t n) {
  const std::uint32_t least = dropout_threshold(args.rate);
  const float scale = dropout_scale(args.rate);
  const std::uint64_t base = row * ((args.width + 3) / 4);
  std::uint32_t words[4 * kBlocks];
  for (std::size_t at = 0; at < n;) {
    const std::size_t column = first + at, skip = column % 4;
    dropout_words(args, base + column / 4, words);
    const std::size_t some = std::min(n - at, 4 * kBlocks - skip);
    scale_dropped(x + at, words + skip, least, scale, some);
    at += some;
  }
}

}  // namespace

void drop(const Dropout& args, Type type, std::uint64_t row, std::size_t first, void* x,
          std::size_t n) {
  if (type == Type::f32) {
    drop_part(args, row, first, static_cast<float*>(x), n);
  } else {
    drop_part(args, row, first, static_cast<std::uint16_t*>(x), n);
  }
}

namespace reference {

void drop(const Dropout& args, Type type, std::uint64_t row, std::size_t first, void* x,
          std::size_t n) {
  const Philox numbers(args.seed, args.stream);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t index = 4 * row * ((args.width + 3) / 4) + first + i;
    const bool kept = numbers.bits(index) >= dropout_threshold(args.rate);
    const double by = kept ? 1.0 / (1.0 - args.rate) : 0.0;
    if (type == Type::f32) {
      float& value = static_cast<float*>(x)[i];
      value = static_cast<float>(value * by);
    } else {
      std::uint16_t& value = static_cast<std::uint16_t*>(x)[i];
      value = to_bf16(static_cast<float>(from_bf16(value) * by));
    }
  }
}

}  // namespace reference

}  // namespace tessera::kernels
