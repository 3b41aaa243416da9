// Compares products by cuBLASLt with double precision on the CPU. Every output is followed by
// guards. Skipped without a GPU.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/kernels/cuda/gemm.h"

namespace tessera::kernels::cuda {
namespace {

at::ScalarType torch_type(DType type) {
  return type == DType::f32 ? at::kFloat : type == DType::bf16 ? at::kBFloat16 : at::kHalf;
}

// Half a unit in the last place, plus a margin for a different order of additions.
double rounding(DType type) {
  return type == DType::f32 ? 1e-6 : type == DType::bf16 ? std::ldexp(1, -8) : std::ldexp(1, -11);
}

at::TensorOptions on_gpu(DType type) { return at::device(at::kCUDA).dtype(torch_type(type)); }

// Matrix followed by guards, which no kernel may write.
struct Guarded {
  explicit Guarded(at::IntArrayRef sizes, DType type, std::int64_t skip = 0)
      : all(at::full({c10::multiply_integers(sizes) + skip + 64}, 7, on_gpu(type))),
        tensor(all.narrow(0, skip, c10::multiply_integers(sizes)).view(sizes)),
        after(skip + tensor.numel()) {}
  void* data() const { return tensor.mutable_data_ptr(); }
  bool intact() const { return all.narrow(0, after, 64).eq(7).all().item<bool>(); }

  at::Tensor all, tensor;
  std::int64_t after;
};

enum class From { nothing, other, itself };

struct Case {
  DType type = DType::bf16, out = DType::bf16;
  std::int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  From c = From::nothing;
  Epilogue epilogue = Epilogue::none;
  bool tune = false;
  std::int64_t skip = 0;  // offset of all operands from 256-byte alignment, in elements

  std::string text() const {
    return str(tessera::name(type), " to ", tessera::name(out), " ", m, "x", n, "x", k,
               " transposed ", ta, tb, " c ", static_cast<int>(c), " epilogue ",
               static_cast<int>(epilogue), tune ? " tuned" : "", " skip ", skip);
  }
};

kernels::cuda::Stream current_stream() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA)
      .getStream(c10::Device(c10::kCUDA, 0))
      .native_handle();
}

Workspace workspace() {
  static const at::Tensor* const memory = new at::Tensor(at::empty(
      {static_cast<std::int64_t>(kGemmWorkspace)}, at::device(at::kCUDA).dtype(at::kByte)));
  return {memory->mutable_data_ptr(), kGemmWorkspace};
}

at::Tensor gelu_of(const at::Tensor& x) {
  return 0.5 * x * (1 + (std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))).tanh());
}

void expect_near(const at::Tensor& got, const at::Tensor& want, const at::Tensor& size, DType type,
                 const std::string& what) {
  const at::Tensor wide = got.to(at::kCPU, at::kDouble);
  const at::Tensor limit = want.abs() * rounding(type) + size * 1e-6 + 1e-7;
  const at::Tensor worst = ((wide - want).abs() / limit).max();
  EXPECT_LE(worst.item<double>(), 1) << what;
}

// Runs the product and compares. Returns the result of gemm().
bool check_case(const Case& how) {
  const Guarded a(how.ta ? at::IntArrayRef{how.k, how.m} : at::IntArrayRef{how.m, how.k}, how.type,
                  how.skip);
  const Guarded b(how.tb ? at::IntArrayRef{how.n, how.k} : at::IntArrayRef{how.k, how.n}, how.type,
                  how.skip);
  const Guarded c({how.m, how.n}, how.out, how.skip), d({how.m, how.n}, how.out, how.skip);
  const Guarded bias({how.n}, how.out, how.skip), aux({how.m, how.n}, how.type);
  const Guarded bias_gradient({how.m}, how.type, how.skip);
  for (const Guarded* x : {&a, &b, &c, &d, &bias}) x->tensor.normal_();
  const at::Tensor before = d.tensor.clone();

  Gemm gemm_of{.type = how.type, .out_type = how.out, .m = how.m, .n = how.n, .k = how.k};
  gemm_of.transpose_a = how.ta, gemm_of.transpose_b = how.tb;
  gemm_of.a = a.data(), gemm_of.b = b.data(), gemm_of.d = d.data();
  gemm_of.c = how.c == From::nothing ? nullptr : how.c == From::other ? c.data() : d.data();
  gemm_of.epilogue = how.epilogue;
  gemm_of.bias = bias.data(), gemm_of.aux = aux.data();
  gemm_of.bias_gradient = bias_gradient.data();
  if (!gemm(gemm_of, workspace(), how.tune, current_stream())) {
    EXPECT_TRUE(at::equal(d.tensor, before)) << how.text();
    return false;
  }

  const auto wide = [](const at::Tensor& x, bool transposed) {
    const at::Tensor y = x.to(at::kCPU, at::kDouble);
    return transposed ? y.t() : y;
  };
  const at::Tensor left = wide(a.tensor, how.ta), right = wide(b.tensor, how.tb);
  at::Tensor want = left.mm(right);
  // Some cuBLASLt kernels round to the output type between product, bias and c, as separate
  // operations would: each intermediate sum may be off by its rounding. (The factor of a million
  // cancels the millionth of `size` in expect_near.)
  at::Tensor intermediate = want.abs();
  const at::Tensor product = want;
  if (how.c != From::nothing) {
    const at::Tensor more = wide(how.c == From::other ? c.tensor : before, false);
    want = want + more;
    intermediate += (product + more).abs();
  }
  if (how.epilogue == Epilogue::bias || how.epilogue == Epilogue::gelu_bias) {
    const at::Tensor more = wide(bias.tensor, false);
    want = want + more;
    intermediate += (product + more).abs();
  }
  const at::Tensor size = left.abs().mm(right.abs()) + intermediate * (1e6 * rounding(how.out));
  if (how.epilogue == Epilogue::gelu_bias) {
    expect_near(aux.tensor, want, size, how.type, how.text() + " aux");
    EXPECT_TRUE(aux.intact()) << how.text();
    // GELU may be applied to the rounded value; its slope is at most 1.13. Its tanh may be the fast
    // one, with eleven bits.
    const at::Tensor before_gelu = 1.13 * (size + want.abs() * (1e6 * rounding(how.type)));
    want = gelu_of(want);
    expect_near(d.tensor, want, before_gelu * (how.type == DType::f32 ? 1000.0 : 1.0), how.out,
                how.text());
  } else {
    expect_near(d.tensor, want, size, how.out, how.text());
  }
  if (how.epilogue == Epilogue::bias_gradient) {
    expect_near(bias_gradient.tensor, left.sum(1), left.abs().sum(1), how.type,
                how.text() + " bias gradient");
    EXPECT_TRUE(bias_gradient.intact()) << how.text();
  }
  EXPECT_TRUE(d.intact()) << how.text();
  return true;
}

class CudaGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
    if (const char* problem = gemm_problem()) GTEST_SKIP() << problem;
    torch::manual_seed(3);
  }
};

TEST_F(CudaGemm, MatchesDoublePrecisionForEveryCombination) {
  int refused = 0, all = 0;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType out : {DType::f32, DType::bf16, DType::f16}) {
      if (out != type && out != DType::f32) continue;
      for (int transposes = 0; transposes < 4; ++transposes) {
        for (const From c : {From::nothing, From::other, From::itself}) {
          Case how{.type = type, .out = out};
          how.ta = (transposes & 1) != 0, how.tb = (transposes & 2) != 0;
          how.c = c;
          how.m = 128, how.n = 256, how.k = 192;
          how.tune = true;
          EXPECT_TRUE(check_case(how)) << how.text();
          how.m = 72, how.n = 40, how.k = 24;
          how.tune = false;
          EXPECT_TRUE(check_case(how)) << how.text();
          // Odd sizes and unaligned operands: cuBLASLt may reject them, but results it computes
          // must be right.
          how.m = 33, how.n = 17, how.k = 29;
          refused += check_case(how) ? 0 : 1;
          how.m = 64, how.n = 64, how.k = 64;
          how.skip = 1;
          refused += check_case(how) ? 0 : 1;
          how.skip = 8;
          EXPECT_TRUE(check_case(how)) << how.text();
          all += 2;
        }
      }
    }
  }
  std::printf("products of odd sizes that cuBLASLt rejected: %d of %d\n", refused, all);
}

TEST_F(CudaGemm, EpiloguesMatchSeparateOperations) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    for (const Epilogue epilogue : {Epilogue::bias, Epilogue::gelu_bias, Epilogue::bias_gradient}) {
      int refused = 0, all = 0;
      for (const From c : {From::nothing, From::other, From::itself}) {
        for (const bool tune : {false, true}) {
          for (const std::int64_t skip : {0, 8}) {
            Case how{.type = type, .out = type, .m = 256, .n = 384, .k = 128};
            how.epilogue = epilogue;
            how.c = c;
            how.tune = tune;
            how.skip = skip;
            // As in training: x · wᵀ and dyᵀ · x.
            how.ta = epilogue == Epilogue::bias_gradient;
            how.tb = !how.ta;
            const bool done = check_case(how);
            if (epilogue == Epilogue::bias) {
              EXPECT_TRUE(done) << how.text();
            }
            refused += done ? 0 : 1;
            how.m = 40, how.n = 24, how.k = 50;
            refused += check_case(how) ? 0 : 1;
            all += 2;
          }
        }
      }
      std::printf("%s, epilogue %d: cuBLASLt rejected %d of %d\n", tessera::name(type),
                  static_cast<int>(epilogue), refused, all);
    }
  }
  Case wide{.type = DType::bf16, .out = DType::f32, .m = 128, .n = 64, .k = 64};
  wide.tb = true;
  wide.epilogue = Epilogue::bias;
  std::printf("bf16 to f32 with bias: %s\n", check_case(wide) ? "done" : "rejected");
}

// Epilogues that would write a different type than requested are rejected up front.
TEST_F(CudaGemm, RejectsUnsupportedOutputTypes) {
  Case how{.type = DType::bf16, .out = DType::f32, .m = 64, .n = 64, .k = 64};
  how.epilogue = Epilogue::bias_gradient;
  how.ta = true;
  EXPECT_FALSE(check_case(how));
  how.epilogue = Epilogue::gelu_bias;
  EXPECT_FALSE(check_case(how));
  how.out = DType::bf16;
  how.n = 12;
  EXPECT_FALSE(check_case(how));
  Gemm empty;
  EXPECT_FALSE(gemm(empty, workspace(), true, current_stream()));
}

TEST_F(CudaGemm, IsDeterministic) {
  const at::Tensor x = at::randn({512, 1024}, on_gpu(DType::bf16));
  const at::Tensor w = at::randn({256, 1024}, on_gpu(DType::bf16));
  Gemm how{.m = 512, .n = 256, .k = 1024, .transpose_b = true};
  how.a = x.const_data_ptr(), how.b = w.const_data_ptr();
  std::vector<at::Tensor> results;
  for (int i = 0; i < 20; ++i) {
    results.push_back(at::empty({512, 256}, x.options()));
    how.d = results.back().mutable_data_ptr();
    ASSERT_TRUE(gemm(how, workspace(), true, current_stream()));
  }
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
}

// Threads share a plan, and each uses its own bias.
TEST_F(CudaGemm, ThreadsShareAPlanSafely) {
  constexpr int threads = 4;
  const at::Tensor x = at::zeros({64, 64}, on_gpu(DType::bf16));
  std::vector<at::Tensor> biases, results, spaces;
  for (int t = 0; t < threads; ++t) {
    biases.push_back(at::full({64}, t, x.options()));
    results.push_back(at::full({64, 64}, -1, x.options()));
    spaces.push_back(at::empty({1 << 20}, x.options().dtype(at::kByte)));
  }
  std::vector<std::thread> running;
  const Stream stream = current_stream();
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      const auto i = static_cast<std::size_t>(t);
      const at::Tensor here = x.clone();  // initializes CUDA in this thread
      Gemm how{.m = 64, .n = 64, .k = 64};
      how.a = how.b = x.const_data_ptr();
      how.d = results[i].mutable_data_ptr();
      how.epilogue = Epilogue::bias;
      how.bias = biases[i].const_data_ptr();
      for (int n = 0; n < 200; ++n) {
        EXPECT_TRUE(gemm(how, {spaces[i].mutable_data_ptr(), 1 << 20}, true, stream));
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  for (int t = 0; t < threads; ++t) {
    EXPECT_TRUE(results[static_cast<std::size_t>(t)].eq(t).all().item<bool>()) << t;
  }
}

// Functions of the CUDA runtime shipped with LibTorch.
template <typename Function>
Function runtime(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

TEST_F(CudaGemm, CanBeCapturedIntoAGraph) {
  const auto begin = runtime<int (*)(Stream, int)>("cudaStreamBeginCapture");
  const auto end = runtime<int (*)(Stream, void**)>("cudaStreamEndCapture");
  const auto instantiate =
      runtime<int (*)(void**, void*, unsigned long long)>("cudaGraphInstantiate");
  const auto launch = runtime<int (*)(void*, Stream)>("cudaGraphLaunch");
  if (begin == nullptr || end == nullptr || instantiate == nullptr || launch == nullptr) {
    GTEST_SKIP() << "no CUDA runtime in the process";
  }
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream stream = guard.getStreamFromGlobalPool(c10::Device(c10::kCUDA, 0));
  const c10::StreamGuard on(stream);
  const at::Tensor x = at::randn({96, 160}, on_gpu(DType::bf16));
  const at::Tensor w = at::randn({48, 160}, on_gpu(DType::bf16));
  const at::Tensor want = at::empty({96, 48}, x.options()), got = at::zeros({96, 48}, x.options());
  (void)workspace();
  for (const bool warm : {false, true}) {
    // A new product takes the first proposal, because nothing can be measured; then a known one.
    Gemm how{.m = 96, .n = 48, .k = 160, .transpose_b = true};
    how.a = x.const_data_ptr(), how.b = w.const_data_ptr(), how.d = got.mutable_data_ptr();
    got.zero_();
    stream.synchronize();
    ASSERT_EQ(begin(stream.native_handle(), /*thread local=*/1), 0);
    const bool taken = gemm(how, workspace(), true, stream.native_handle());
    void *graph = nullptr, *exec = nullptr;
    ASSERT_EQ(end(stream.native_handle(), &graph), 0);
    ASSERT_TRUE(taken);
    EXPECT_TRUE(got.eq(0).all().item<bool>()) << "ran instead of being recorded";
    ASSERT_EQ(instantiate(&exec, graph, 0), 0);
    ASSERT_EQ(launch(exec, stream.native_handle()), 0);
    how.d = want.mutable_data_ptr();
    ASSERT_TRUE(gemm(how, workspace(), warm, stream.native_handle()));
    stream.synchronize();
    EXPECT_TRUE(at::equal(got, want)) << warm;
    ASSERT_TRUE(gemm(how, workspace(), true, stream.native_handle()));
  }
}

TEST(CudaGemmWithoutAGpu, ReportsTheReason) {
  if (torch::cuda::is_available() && gemm_problem() == nullptr) GTEST_SKIP() << "there is a GPU";
  ASSERT_NE(gemm_problem(), nullptr);
  EXPECT_FALSE(std::string(gemm_problem()).empty());
}

}  // namespace
}  // namespace tessera::kernels::cuda
