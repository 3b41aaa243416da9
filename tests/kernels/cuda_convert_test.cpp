// Compares conversions on the GPU with the host's rounding, bitwise.
#include "tessera/kernels/cuda/convert.h"

#include <limits>

#include "tessera/core/errors.h"
#include "tests/kernels/device.h"

namespace tessera::kernels::cuda {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

// Multiples of eight and remainders, one and several blocks, aligned and unaligned.
TEST(CudaConvert, ConvertsEveryTypeToEveryOther) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(31);
  for (const std::size_t n : {1, 7, 8, 9, 4096, 4103, 100'003}) {
    for (const DType from_type : kTypes) {
      for (const DType to_type : kTypes) {
        for (const auto& [from_shift, to_shift] : {std::pair{0, 0}, {1, 0}, {0, 3}, {8, 8}}) {
          const DeviceArray from = normal_array(from_type, n, random, 3, from_shift);
          DeviceArray to(to_type, n, to_shift), wanted(to_type, n, to_shift);
          to.upload();
          for (std::size_t i = 0; i < n; ++i) wanted.set(i, from[i]);
          convert({from_type, to_type, n, from.data(), to.data()}, nullptr);
          to.download();
          EXPECT_TRUE(to == wanted)
              << name(from_type) << " to " << name(to_type) << ", " << n << " elements, shifted by "
              << from_shift << " and " << to_shift;
        }
      }
    }
  }
}

TEST(CudaConvert, RoundsTiesZerosAndOverflowsAsTheHostDoes) {
  TESSERA_NEEDS_GPU();
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {0.0,      -0.0,       1.00390625, 1.01171875, -1.00390625,
                                      65504.0,  65519.0,    65520.0,    3.4e38,     -3.4e38,
                                      infinite, -infinite,  1e-40,      6e-8,       2.9e-8,
                                      5.96e-8,  1.00048828, 1.00146484};
  for (const DType to_type : kTypes) {
    DeviceArray from(DType::f32, values.size()), to(to_type, values.size()),
        wanted(to_type, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) from.set(i, values[i]);
    from.upload();
    to.upload();
    for (std::size_t i = 0; i < values.size(); ++i) wanted.set(i, from[i]);
    convert({DType::f32, to_type, values.size(), from.data(), to.data()}, nullptr);
    to.download();
    EXPECT_TRUE(to == wanted) << name(to_type);
  }
}

TEST(CudaConvert, RejectsOtherTypes) {
  TESSERA_NEEDS_GPU();
  DeviceArray x(DType::f32, 8);
  EXPECT_THROW(convert({DType::i32, DType::f32, 8, x.data(), x.data()}, nullptr), UsageError);
  EXPECT_THROW(convert({DType::f32, DType::i64, 8, x.data(), x.data()}, nullptr), UsageError);
  convert({DType::bf16, DType::f32, 0, nullptr, nullptr}, nullptr);
}

}  // namespace
}  // namespace tessera::kernels::cuda
