// Compares conversions to fp8 with LibTorch's on the CPU, bitwise, and products in fp8 with double
// precision. Skipped without a GPU.
#include "tessera/kernels/cuda/fp8.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <limits>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/gemm.h"
#include "tessera/kernels/cuda/layers.h"

namespace tessera::kernels::cuda {
namespace {

Stream stream() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA)
      .getStream(c10::Device(c10::kCUDA, 0))
      .native_handle();
}

#define TESSERA_NEEDS_FP8()                                                    \
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no CUDA device"; \
  if (const char* problem = fp8_problem()) GTEST_SKIP() << "skipped: " << problem

DType type_of(at::ScalarType type) {
  return type == at::kFloat ? DType::f32 : type == at::kBFloat16 ? DType::bf16 : DType::f16;
}

at::Tensor largest_of(const at::Tensor& x) {
  at::Tensor largest = at::full({1}, 1e9, x.options().dtype(at::kFloat));  // must be replaced
  largest_magnitude({type_of(x.scalar_type()), static_cast<std::size_t>(x.numel()), x.data_ptr()},
                    largest.data_ptr<float>(), stream());
  return largest;
}

float limit_of(at::ScalarType type) { return type == at::kFloat8_e5m2 ? 57344.0f : 448.0f; }

struct Converted {
  at::Tensor rows, transposed, factor;
};

// Each output has a guard behind it, which must not change.
Converted convert8(const at::Tensor& x, at::ScalarType type, const at::Tensor& largest, bool rows,
                   bool transposed) {
  const auto padded = static_cast<std::int64_t>(fp8_rows(static_cast<std::size_t>(x.size(0))));
  const auto bytes = x.options().dtype(at::kByte);
  const at::Tensor a = at::full({x.numel() + 64}, 77, bytes);
  const at::Tensor b = at::full({x.size(1) * padded + 64}, 77, bytes);
  const at::Tensor factor = at::zeros({1}, x.options().dtype(at::kFloat));
  ToFp8 args;
  args.type = type_of(x.scalar_type());
  args.to = type == at::kFloat8_e5m2 ? DType::f8_e5m2 : DType::f8_e4m3;
  args.rows = static_cast<std::size_t>(x.size(0)), args.cols = static_cast<std::size_t>(x.size(1));
  args.x = x.data_ptr();
  args.largest = largest.data_ptr<float>();
  to_fp8(args, rows ? a.data_ptr() : nullptr, transposed ? b.data_ptr() : nullptr,
         factor.data_ptr<float>(), stream());
  EXPECT_TRUE(a.narrow(0, x.numel(), 64).eq(77).all().item<bool>());
  EXPECT_TRUE(b.narrow(0, x.size(1) * padded, 64).eq(77).all().item<bool>());
  return {a.narrow(0, 0, x.numel()).view(x.sizes()).cpu(),
          b.narrow(0, 0, x.size(1) * padded).view({x.size(1), padded}).cpu(), factor.cpu()};
}

TEST(CudaFp8, ConversionsEqualThoseOfTorch) {
  TESSERA_NEEDS_FP8();
  at::manual_seed(3);
  for (const auto& [rows, cols] : {std::pair{1, 16},
                                   {16, 16},
                                   {5, 48},
                                   {128, 128},
                                   {129, 144},
                                   {300, 1600},
                                   {1027, 272},
                                   {64, 6400}}) {
    for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const at::ScalarType to : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
        SCOPED_TRACE(str(rows, " x ", cols, " ", c10::toString(from), " ", c10::toString(to)));
        const at::Tensor x = (at::randn({rows, cols}, at::kCUDA) * 3).to(from);
        const at::Tensor largest = largest_of(x);
        ASSERT_EQ(largest.item<float>(), x.abs().max().item<float>());
        const float scale = limit_of(to) / largest.item<float>();
        const at::Tensor wanted = (x.to(at::kFloat).cpu() * scale).to(to).view(at::kByte);
        for (const auto& [straight, across] :
             {std::pair{true, true}, {true, false}, {false, true}}) {
          const Converted got = convert8(x, to, largest, straight, across);
          EXPECT_EQ(got.factor.item<float>(), largest.item<float>() / limit_of(to));
          if (straight) {
            EXPECT_TRUE(got.rows.equal(wanted));
          }
          if (across) {
            EXPECT_TRUE(got.transposed.narrow(1, 0, rows).equal(wanted.t()));
            EXPECT_TRUE(got.transposed.narrow(1, rows, got.transposed.size(1) - rows)
                            .eq(0)
                            .all()
                            .item<bool>());
          }
        }
      }
    }
  }
}

TEST(CudaFp8, HandlesZerosTinyAndNonFiniteValues) {
  TESSERA_NEEDS_FP8();
  const auto options = at::device(at::kCUDA).dtype(at::kFloat);
  const auto values_of = [&](const at::Tensor& x, at::ScalarType type) {
    const Converted got = convert8(x, type, largest_of(x), true, false);
    return std::pair(got.rows.view(type).to(at::kFloat), got.factor);
  };
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto [zeros, one] = values_of(at::zeros({16, 16}, options), type);
    EXPECT_TRUE(zeros.eq(0).all().item<bool>());
    EXPECT_EQ(one.item<float>(), 1.0f);
    const auto [tiny, factor] = values_of(at::full({16, 16}, 1e-38, options), type);
    EXPECT_FALSE(tiny.isnan().any().item<bool>());
    EXPECT_FALSE(factor.isnan().any().item<bool>());
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      at::Tensor x = at::ones({16, 16}, options);
      x[3][4] = bad;
      EXPECT_TRUE(values_of(x, type).first[3][4].isnan().item<bool>()) << bad;
    }
  }
}

// Kernels that compute the largest magnitude in their own pass agree with a pass over the result.
TEST(CudaFp8, OtherKernelsFindTheLargestMagnitude) {
  TESSERA_NEEDS_FP8();
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, cols] :
         {std::pair{1, 16}, {37, 768}, {300, 1600}, {33, 101}, {9, 6400}}) {
      SCOPED_TRACE(str(rows, " x ", cols, " ", c10::toString(type)));
      const auto options = at::device(at::kCUDA).dtype(type);
      const auto fp32 = options.dtype(at::kFloat);
      const auto r = static_cast<std::size_t>(rows), c = static_cast<std::size_t>(cols);
      const DType as = type_of(type);
      const at::Tensor x = at::randn({rows, cols}, options), dy = at::randn({rows, cols}, options);
      const at::Tensor w = at::randn({cols}, options), b = at::randn({cols}, options);
      const at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
      const at::Tensor scratch =
          at::empty({static_cast<std::int64_t>(column_scratch(r, 4 * c))}, fp32);
      const auto expect_largest = [&](const char* what, const at::Tensor& of, auto&& run) {
        const at::Tensor largest = at::zeros({1}, fp32);
        run(largest.data_ptr<float>());
        EXPECT_EQ(largest.item<float>(), of.abs().max().item<float>()) << what;
      };
      const Gelu gelu{as, as, r, c, x.data_ptr(), b.data_ptr()};
      expect_largest("gelu", y, [&](float* to) {
        Gelu in = gelu;
        in.largest = to;
        gelu_forward(in, y.data_ptr(), stream());
      });
      const at::Tensor db = at::empty_like(b), dw = at::empty_like(w);
      for (const Sink sink : {Sink{}, Sink{db.data_ptr(), as, false}}) {
        expect_largest("gelu backward", dx, [&](float* to) {
          Gelu in = gelu;
          in.largest = to;
          gelu_backward(in, dy.data_ptr(), dx.data_ptr(), y.data_ptr(), sink,
                        scratch.data_ptr<float>(), stream());
        });
      }
      const at::Tensor both = at::randn({rows, 2 * cols}, options), dboth = at::empty_like(both);
      expect_largest("swiglu", y, [&](float* to) {
        swiglu_forward({as, r, c, both.data_ptr(), to}, y.data_ptr(), stream());
      });
      expect_largest("swiglu backward", dboth, [&](float* to) {
        swiglu_backward({as, r, c, both.data_ptr(), to}, dy.data_ptr(), dboth.data_ptr(), nullptr,
                        stream());
      });
      const at::Tensor mean = at::empty({rows}, fp32), rstd = at::empty({rows}, fp32);
      const at::Tensor sum = at::empty_like(x), sums = at::empty({cols}, fp32);
      for (const bool residual : {false, true}) {
        Norm norm;
        norm.type = as, norm.weight_type = as, norm.rows = r, norm.cols = c;
        norm.x = x.data_ptr(), norm.weight = w.data_ptr(), norm.bias = b.data_ptr();
        if (residual) norm.residual = dy.data_ptr();
        expect_largest("norm", y, [&](float* to) {
          norm.largest = to;
          norm_forward(norm, y.data_ptr(), residual ? sum.data_ptr() : nullptr,
                       mean.data_ptr<float>(), rstd.data_ptr<float>(), stream());
        });
        if (residual) norm.x = sum.data_ptr();
        norm.residual = nullptr;
        expect_largest("norm backward", dx, [&](float* to) {
          norm.largest = to;
          norm_backward(norm, mean.data_ptr<float>(), rstd.data_ptr<float>(), dy.data_ptr(),
                        residual ? x.data_ptr() : nullptr, dx.data_ptr(), nullptr,
                        {dw.data_ptr(), as, false}, {}, residual ? sums.data_ptr<float>() : nullptr,
                        scratch.data_ptr<float>(), stream());
        });
      }
      const at::Tensor wide = at::empty({rows, 3 * cols}, options);
      const at::Tensor wide_sums = at::empty({3 * cols}, fp32);
      for (const bool add : {false, true}) {
        expect_largest("side by side", wide, [&](float* to) {
          side_by_side({as, r, {x.data_ptr(), dy.data_ptr(), x.data_ptr()}, {c, c, c}, to},
                       wide.data_ptr(), add ? wide_sums.data_ptr<float>() : nullptr,
                       scratch.data_ptr<float>(), stream());
        });
      }
    }
  }
}

TEST(CudaFp8, ProductsMatchDoublePrecision) {
  TESSERA_NEEDS_FP8();
  at::manual_seed(7);
  const at::Tensor memory = at::empty({static_cast<std::int64_t>(kGemmWorkspace)},
                                      at::device(at::kCUDA).dtype(at::kByte));
  const Workspace workspace{memory.data_ptr(), kGemmWorkspace};
  for (const auto& [m, n, k] : {std::tuple{64, 64, 64},
                                {200, 128, 64},
                                {512, 1600, 1600},
                                {1000, 4800, 1600},
                                {4800, 1600, 512}}) {
    for (const at::ScalarType first : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const at::ScalarType out_type : {at::kBFloat16, at::kHalf, at::kFloat}) {
        for (const int mode : {0, 1, 2, 3}) {  // nothing, bias, addend, added to itself
          if (mode == 1 && out_type == at::kFloat) continue;  // a bias has 16 bits
          SCOPED_TRACE(str(m, " x ", n, " x ", k, " ", c10::toString(first), " ",
                           c10::toString(out_type), " mode ", mode));
          const at::Tensor a = at::randn({m, k}, at::kCUDA).to(first);
          const at::Tensor b = at::randn({n, k}, at::kCUDA).to(at::kFloat8_e4m3fn);
          const at::Tensor fa = at::rand({1}, at::kCUDA) + 0.5, fb = at::rand({1}, at::kCUDA) + 0.5;
          const at::Tensor bias = at::randn({n}, at::device(at::kCUDA).dtype(out_type));
          const at::Tensor addend = at::randn({m, n}, bias.options());
          at::Tensor out = mode == 3 ? addend.clone() : at::empty({m, n}, bias.options());
          at::Tensor wanted =
              at::mm(a.to(at::kDouble), b.to(at::kDouble).t()) * (fa * fb).to(at::kDouble);
          const double scale = wanted.abs().max().item<double>();
          if (mode == 1) wanted = wanted + bias;
          if (mode >= 2) wanted = wanted + addend;
          for (const bool fast : {false, true}) {
            if (mode == 3) out.copy_(addend);
            Gemm args;
            args.type = first == at::kFloat8_e5m2 ? DType::f8_e5m2 : DType::f8_e4m3;
            args.b_type = DType::f8_e4m3, args.out_type = type_of(out_type);
            args.m = m, args.n = n, args.k = k, args.transpose_b = true;
            args.a = a.data_ptr(), args.b = b.data_ptr(), args.d = out.data_ptr();
            if (mode == 1) args.bias = bias.data_ptr(), args.epilogue = Epilogue::bias;
            if (mode == 2) args.c = addend.data_ptr();
            if (mode == 3) args.c = out.data_ptr();
            args.a_factor = fa.data_ptr<float>(), args.b_factor = fb.data_ptr<float>();
            args.fast_sums = fast;
            ASSERT_TRUE(gemm(args, workspace, /*tune=*/true, stream()));
            const double error = (out.to(at::kDouble) - wanted).abs().max().item<double>();
            const double rounding = out_type == at::kBFloat16 ? 4e-3 : 6e-4;
            EXPECT_LE(error,
                      (fast ? 1.5e-2 : 5e-3) * scale + rounding * wanted.abs().max().item<double>())
                << (fast ? "fast" : "exact") << " sums";
          }
        }
      }
    }
  }
}

TEST(CudaFp8, RejectsWrongArguments) {
  TESSERA_NEEDS_FP8();
  const at::Tensor x = at::randn({16, 24}, at::kCUDA), out = at::empty({2048}, at::kCUDA);
  ToFp8 args{DType::f32, DType::f8_e4m3, 16, 24, x.data_ptr(), out.data_ptr<float>()};
  EXPECT_THROW(to_fp8(args, out.data_ptr(), nullptr, out.data_ptr<float>(), stream()), UsageError);
  args.cols = 16, args.to = DType::bf16;
  EXPECT_THROW(to_fp8(args, out.data_ptr(), nullptr, out.data_ptr<float>(), stream()), UsageError);
  Gemm product;
  product.type = DType::f8_e4m3, product.b_type = DType::f8_e4m3;
  product.m = product.n = 16, product.k = 24, product.transpose_b = true;
  EXPECT_FALSE(gemm(product, {}, false, stream()));  // k is not a multiple of 16
}

}  // namespace
}  // namespace tessera::kernels::cuda
