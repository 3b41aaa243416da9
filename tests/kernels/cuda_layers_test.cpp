// Compares the CUDA layers with double precision, over shapes, types, options and allowed aliases.
#include "tessera/kernels/cuda/layers.h"

#include <limits>

#include "tests/kernels/cuda_cases.h"

namespace tessera::kernels::cuda {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(CudaGelu, MatchesDoublePrecision) {
  TESSERA_NEEDS_GPU();
  each_case([](const Case& c, std::mt19937& random) {
    const std::size_t n = c.rows * c.cols;
    const DeviceArray x = normal_array(c.type, n, random, 2, c.shift);
    const DeviceArray bias = normal_array(c.other, c.cols, random);
    for (const bool with_bias : {false, true}) {
      const Gelu in{c.type, c.other, c.rows, c.cols, x.data(), with_bias ? bias.data() : nullptr};
      DeviceArray dy = normal_array(c.type, n, random), dx(c.type, n, c.shift);
      std::vector<double> y(n), d(n), sums(c.cols);
      for (std::size_t i = 0; i < n; ++i) {
        const double z = x[i] + (with_bias ? bias[i % c.cols] : 0.0);
        const double slope = std::sqrt(8 / M_PI) * (1 + 3 * 0.044715 * z * z);
        const double gate = sigmoid(std::sqrt(8 / M_PI) * (z + 0.044715 * z * z * z));
        y[i] = z * gate;
        d[i] = dy[i] * (gate + z * gate * (1 - gate) * slope);
        sums[i % c.cols] += d[i];
      }
      DeviceArray out(c.type, n, c.shift), in_place(x);
      gelu_forward(in, out.data(), nullptr);
      expect_close(out, y, 2e-6, 0.05, "y");
      Gelu here = in;
      here.x = in_place.data();
      gelu_forward(here, in_place.data(), nullptr);
      expect_close(in_place, y, 2e-6, 0.05, "y in x's place");

      DeviceArray again(c.type, n, c.shift), scratch(DType::f32, column_scratch(c.rows, c.cols));
      each_sink(c.cols, random, [&](DeviceArray& dbias, Sink sink, std::vector<double> wanted) {
        add_to(wanted, sums);
        gelu_backward(in, dy.data(), dx.data(), with_bias ? again.data() : nullptr, sink,
                      scratch.as<float>(), nullptr);
        expect_close(dx, d, 4e-6, 1, "dx");
        if (with_bias) expect_close(again, y, 2e-6, 0.05, "y again");
        expect_close(dbias, wanted, 4e-6, 3 * std::sqrt(c.rows + 1.0), "dbias");
      });
      gelu_backward(in, dy.data(), dy.data(), nullptr, {}, nullptr, nullptr);
      expect_close(dy, d, 4e-6, 1, "dx in dy's place, without dbias");
    }
  });
}

// Enough rows for every block to loop several times.
TEST(CudaGelu, LoopsOverManyRows) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(12);
  for (const DType type : {DType::f32, DType::bf16}) {
    const std::size_t rows = 3333, cols = 1600;
    DeviceArray x = normal_array(type, rows * cols, random, 2);
    const DeviceArray bias = normal_array(type, cols, random);
    std::vector<double> y(x.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double z = x[i] + bias[i % cols];
      y[i] = z * sigmoid(std::sqrt(8 / M_PI) * (z + 0.044715 * z * z * z));
    }
    gelu_forward({type, type, rows, cols, x.data(), bias.data()}, x.data(), nullptr);
    expect_close(x, y, 2e-6, 0.05, "y in x's place");
  }
}

TEST(CudaGelu, HandlesLargeValues) {
  TESSERA_NEEDS_GPU();
  const std::vector<double> values = {0, 5, -5, 12, -12, 1e4, -1e4, 1e20, -1e20, 3e38, -3e38, 1e30};
  for (const DType type : {DType::f32, DType::bf16}) {
    DeviceArray x(type, values.size()), dy(type, values.size()), y(type, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) x.set(i, values[i]), dy.set(i, 1);
    x.upload();
    dy.upload();
    Gelu in;
    in.type = type, in.rows = 1, in.cols = values.size(), in.x = x.data();
    gelu_backward(in, dy.data(), dy.data(), y.data(), {}, nullptr, nullptr);
    y.download();
    dy.download();
    EXPECT_EQ(dy[0], 0.5);
    for (std::size_t i = 3; i < values.size(); ++i) {
      EXPECT_NEAR(dy[i], values[i] > 0 ? 1 : 0, 1e-12) << values[i];
      EXPECT_EQ(y[i] / x[i] > 0.5 ? x[i] : 0, values[i] > 0 ? x[i] : 0) << values[i];
    }
  }
}

TEST(CudaSwiGlu, MatchesDoublePrecision) {
  TESSERA_NEEDS_GPU();
  each_case([](const Case& c, std::mt19937& random) {
    const std::size_t n = c.rows * c.cols;
    DeviceArray x = normal_array(c.type, 2 * n, random, 2, c.shift);
    const DeviceArray dy = normal_array(c.type, n, random);
    const SwiGlu in{c.type, c.rows, c.cols, x.data()};
    std::vector<double> y(n), d(2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = i / c.cols * 2 * c.cols + i % c.cols;
      const double gate = x[at], value = x[at + c.cols], open = sigmoid(gate);
      y[i] = gate * open * value;
      d[at] = dy[i] * value * open * (1 + gate * (1 - open));
      d[at + c.cols] = dy[i] * gate * open;
    }
    DeviceArray out(c.type, n, c.shift), again(c.type, n, c.shift), dx(c.type, 2 * n, c.shift);
    swiglu_forward(in, out.data(), nullptr);
    expect_close(out, y, 2e-6, 0.1, "y");
    swiglu_backward(in, dy.data(), dx.data(), nullptr, nullptr);
    expect_close(dx, d, 4e-6, 1, "dx");
    swiglu_backward(in, dy.data(), x.data(), again.data(), nullptr);
    expect_close(x, d, 4e-6, 1, "dx in x's place");
    expect_close(again, y, 2e-6, 0.1, "y again");
  });
}

TEST(CudaColumns, SumsEachColumn) {
  TESSERA_NEEDS_GPU();
  each_case([](const Case& c, std::mt19937& random) {
    const DeviceArray x = normal_array(c.type, c.rows * c.cols, random, 1, c.shift);
    std::vector<double> sums(c.cols);
    for (std::size_t i = 0; i < x.size(); ++i) sums[i % c.cols] += x[i];
    DeviceArray scratch(DType::f32, column_scratch(c.rows, c.cols));
    each_sink(c.cols, random, [&](DeviceArray& out, Sink sink, std::vector<double> wanted) {
      add_to(wanted, sums);
      column_sums({c.type, c.rows, c.cols, x.data()}, sink, scratch.as<float>(), nullptr);
      expect_close(out, wanted, 2e-6, std::sqrt(c.rows + 1.0), "sums");
    });
    scratch.download();
    EXPECT_TRUE(scratch.guarded());
  });
}

TEST(CudaColumns, PutSumsWritesOrAddsToTheSink) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(11);
  for (const std::size_t cols : {1u, 127u, 128u, 129u, 4800u}) {
    const DeviceArray sums = normal_array(DType::f32, cols, random, 10);
    each_sink(cols, random, [&](DeviceArray& out, Sink sink, std::vector<double> wanted) {
      for (std::size_t i = 0; i < cols; ++i) wanted[i] += sums[i];
      put_sums(sums.as<float>(), cols, sink, nullptr);
      expect_close(out, wanted, 1e-7, 10, "sums");
    });
    put_sums(sums.as<float>(), cols, {}, nullptr);
  }
}

// Scratch for more columns is always enough for fewer.
TEST(CudaColumns, ScratchNeverShrinksWithMoreColumns) {
  if (!built()) GTEST_SKIP() << "skipped: built without CUDA kernels";
  for (const std::size_t rows : {0u, 1u, 131u, 500u, 100000u}) {
    std::size_t before = 0;
    for (std::size_t cols = 0; cols < 60000; cols += 13) {
      ASSERT_LE(before, column_scratch(rows, cols)) << rows << " " << cols;
      before = column_scratch(rows, cols);
    }
  }
}

TEST(CudaSideBySide, CopiesEveryElement) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(3);
  const std::size_t widths[][3] = {{8, 8, 8},   {1600, 1600, 1600}, {4096, 1024, 1024},
                                   {1, 2, 3},   {5, 0, 7},          {0, 16, 0},
                                   {64, 8, 24}, {100, 64, 64}};
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& cols : widths) {
      for (const std::size_t rows : {0u, 1u, 7u, 33u, 100u, 700u}) {
        const std::size_t all = cols[0] + cols[1] + cols[2];
        const DeviceArray parts[3] = {normal_array(type, rows * cols[0], random),
                                      normal_array(type, rows * cols[1], random),
                                      normal_array(type, rows * cols[2], random)};
        SideBySide in;
        in.type = type;
        in.rows = rows;
        std::vector<double> wanted(rows * all);
        for (std::size_t r = 0; r < rows; ++r) {
          std::size_t column = 0;
          for (int p = 0; p < 3; ++p) {
            for (std::size_t i = 0; i < cols[p]; ++i) {
              wanted[r * all + column++] = parts[p][r * cols[p] + i];
            }
          }
        }
        for (int p = 0; p < 3; ++p) in.parts[p] = parts[p].data(), in.cols[p] = cols[p];
        DeviceArray out(type, rows * all);
        side_by_side(in, out.data(), nullptr, nullptr, nullptr);
        expect_close(out, wanted, 0, 0, "side by side");

        std::vector<double> totals(all);
        for (std::size_t i = 0; i < wanted.size(); ++i) totals[i % all] += wanted[i];
        DeviceArray again(type, rows * all), sums(DType::f32, all);
        DeviceArray scratch(DType::f32, column_scratch(rows, all));
        side_by_side(in, again.data(), sums.as<float>(), scratch.as<float>(), nullptr);
        expect_close(again, wanted, 0, 0, "side by side, with sums");
        expect_close(sums, totals, 2e-6, std::sqrt(rows + 1.0), "sums");
        scratch.download();
        EXPECT_TRUE(scratch.guarded());
      }
    }
  }
}

TEST(CudaRotary, RotatesForwardAndBack) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(4);
  constexpr double gain = 1.25;
  struct Shape {
    std::size_t rows, tokens, heads, dim, gap;  // gap: elements after the heads in each row
  };
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const Shape& s : {Shape{1, 1, 1, 2, 0}, Shape{6, 3, 2, 8, 5}, Shape{40, 10, 5, 64, 64},
                           Shape{12, 4, 40, 128, 1024}, Shape{5, 5, 3, 80, 16},
                           Shape{3, 3, 70, 256, 0}, Shape{9, 9, 2, 6, 1}, Shape{4, 4, 1, 512, 8}}) {
      const std::size_t stride = s.heads * s.dim + s.gap;
      DeviceArray x = normal_array(type, s.rows * stride, random);
      std::vector<double> wanted, before;
      for (std::size_t i = 0; i < x.size(); ++i) wanted.push_back(x[i]), before.push_back(x[i]);
      for (std::size_t r = 0; r < s.rows; ++r) {
        for (std::size_t h = 0; h < s.heads; ++h) {
          for (std::size_t i = 0; i < s.dim / 2; ++i) {
            const double turn = std::pow(5e5, -2.0 * i / s.dim);
            const double angle = static_cast<double>(r % s.tokens) * turn;
            double& a = wanted[r * stride + h * s.dim + i];
            double& b = wanted[r * stride + h * s.dim + i + s.dim / 2];
            const double old = a;
            a = gain * (old * std::cos(angle) - b * std::sin(angle));
            b = gain * (b * std::cos(angle) + old * std::sin(angle));
          }
        }
      }
      Rotary how{type, s.rows, stride, s.tokens, s.heads, s.dim, 5e5, false};
      how.gain = static_cast<float>(gain);
      rotary(how, x.data(), nullptr);
      expect_close(x, wanted, 1e-6, 2, "turned");
      how.back = true;
      how.gain = static_cast<float>(1 / gain);
      rotary(how, x.data(), nullptr);
      expect_close(x, before, 4 * rounding(type), 4, "turned back");
    }
  }
}

// An fp32 product t · frequency would be wrong by hundredths of a turn here.
TEST(CudaRotary, KeepsPrecisionForDistantTokens) {
  TESSERA_NEEDS_GPU();
  const std::size_t tokens = 131072, dim = 8;
  DeviceArray x(DType::f32, tokens * dim);
  for (std::size_t i = 0; i < x.size(); ++i) x.set(i, i % dim < dim / 2 ? 1 : 0);
  x.upload();
  rotary({DType::f32, tokens, dim, tokens, 1, dim, 1e4, false}, x.data(), nullptr);
  std::vector<double> wanted(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double angle = static_cast<double>(i / dim) * std::pow(1e4, -2.0 * (i % (dim / 2)) / dim);
    wanted[i] = i % dim < dim / 2 ? std::cos(angle) : std::sin(angle);
  }
  expect_close(x, wanted, 1e-6, 1, "angle");
}

TEST(CudaRotary, CountsPositionsOfTwoChunks) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(6);
  const std::size_t chunk = 3, tokens = 2 * chunk, rows = 2 * tokens, dim = 8;
  DeviceArray x = normal_array(DType::f32, rows * dim, random);
  std::vector<double> wanted;
  for (std::size_t i = 0; i < x.size(); ++i) wanted.push_back(x[i]);
  Rotary how{DType::f32, rows, dim, tokens, 1, dim, 1e4, false};
  how.chunk = chunk;
  how.first[0] = 1000003, how.first[1] = 1048570;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t t = r % tokens;
    const auto position = static_cast<double>(how.first[t / chunk] + t % chunk);
    for (std::size_t i = 0; i < dim / 2; ++i) {
      const double angle = position * std::pow(1e4, -2.0 * i / dim);
      double &a = wanted[r * dim + i], &b = wanted[r * dim + i + dim / 2];
      const double old = a;
      a = old * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + old * std::sin(angle);
    }
  }
  rotary(how, x.data(), nullptr);
  expect_close(x, wanted, 1e-6, 4, "two chunks");
  how.chunk = 2;
  EXPECT_THROW(rotary(how, x.data(), nullptr), UsageError);
}

TEST(CudaLayers, RejectsInvalidArguments) {
  TESSERA_NEEDS_GPU();
  DeviceArray x(DType::f32, 64);
  EXPECT_THROW(rotary({DType::f32, 1, 8, 1, 1, 7, 1e4, false}, x.data(), nullptr), UsageError);
  EXPECT_THROW(rotary({DType::f32, 1, 8, 1, 2, 8, 1e4, false}, x.data(), nullptr), UsageError);
  EXPECT_THROW(gelu_forward({DType::i32, DType::f32, 1, 8, x.data(), nullptr}, x.data(), nullptr),
               UsageError);
}

}  // namespace
}  // namespace tessera::kernels::cuda
