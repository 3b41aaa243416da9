#include "tessera/kernels/optimizer.h"

#include <gtest/gtest.h>

#include "tests/kernels/arrays.h"

namespace tessera::kernels {
namespace {

TEST(SumOfSquares, MatchesTheReferenceBitwise) {
  std::mt19937 random(1);
  for (const KernelSet* set : usable_sets()) {
    for (const Type type : both_types) {
      for (const std::size_t n : odd_sizes) {
        const Array x = random_array(type, n, random);
        EXPECT_EQ(set->sum_of_squares(x.data(), type, n),
                  reference::sum_of_squares(x.data(), type, n))
            << set->name << " " << n;
      }
    }
  }
}

TEST(SumOfSquares, DoesNotOverflow) {
  Array x(Type::f32, 100);
  for (std::size_t i = 0; i < 100; ++i) x.set(i, 3e38f);
  EXPECT_NEAR(sum_of_squares(x.data(), Type::f32, 100) / 9e78, 1.0, 1e-6);
}

TEST(Conversions, RoundToNearestEven) {
  std::mt19937 random(2);
  for (const KernelSet* set : usable_sets()) {
    for (const std::size_t n : odd_sizes) {
      std::vector<float> from(n), back(n);
      std::vector<std::uint16_t> to(n);
      for (float& x : from) {
        const auto bits = static_cast<std::uint32_t>(random());
        std::memcpy(&x, &bits, 4);  // includes NaNs, infinities and subnormals
      }
      set->narrow(from.data(), to.data(), n);
      set->widen(to.data(), back.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_EQ(to[i], to_bf16(from[i])) << set->name;
        const float wide = from_bf16(to[i]);
        EXPECT_EQ(std::memcmp(&back[i], &wide, 4), 0);
      }
    }
  }
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f), 0x3f80);            // ties to even, down
  EXPECT_EQ(to_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  // ties to even, up
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_NE(from_bf16(to_bf16(NAN)), from_bf16(to_bf16(NAN)));
}

}  // namespace
}  // namespace tessera::kernels
