// Times the matrix products and the attention of gpt2-xl at batch 15 on a GPU: cuBLASLt's first
// heuristic, the algorithm selected by measurement, and ATen; the cost and savings of epilogues;
// and the attention kernels.

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tessera/kernels/cuda/gemm.h"
#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/ops_attention.h"

namespace tessera {
namespace {

using kernels::cuda::Epilogue;
using kernels::cuda::Gemm;

const c10::Device kGpu(c10::kCUDA, 0);

c10::Stream stream() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kGpu); }
at::TensorOptions bf16() { return at::device(kGpu).dtype(at::kBFloat16); }

// Milliseconds of a run, or -1 if it is not possible.
double time_of(const std::function<bool()>& f) {
  constexpr int times = 10;
  for (int i = 0; i < 3; ++i) {
    if (!f()) return -1;
  }
  c10::Event begin(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream());
  for (int i = 0; i < times; ++i) f();
  end.record(stream());
  end.synchronize();
  return begin.elapsedTime(end) / times;
}

std::function<bool()> done(const std::function<void()>& f) {
  return [f] {
    f();
    return true;
  };
}

struct Product {
  const char* name;
  std::int64_t m, n, k;
  bool ta, tb;
  DType out = DType::bf16;
  bool add = false;
};

class Bench {
 public:
  Bench()
      : space_(at::empty({static_cast<std::int64_t>(kernels::cuda::kGemmWorkspace)},
                         bf16().dtype(at::kByte))) {}

  bool gemm(const Gemm& how, bool tune) const {
    return kernels::cuda::gemm(how, {space_.mutable_data_ptr(), kernels::cuda::kGemmWorkspace},
                               tune, stream().native_handle());
  }

  void product(const Product& p) const {
    const at::Tensor a = p.ta ? at::randn({p.k, p.m}, bf16()) : at::randn({p.m, p.k}, bf16());
    const at::Tensor b = p.tb ? at::randn({p.n, p.k}, bf16()) : at::randn({p.k, p.n}, bf16());
    at::Tensor d =
        at::zeros({p.m, p.n}, bf16().dtype(p.out == DType::f32 ? at::kFloat : at::kBFloat16));
    Gemm how{.out_type = p.out, .m = p.m, .n = p.n, .k = p.k};
    how.transpose_a = p.ta, how.transpose_b = p.tb;
    how.a = a.const_data_ptr(), how.b = b.const_data_ptr(), how.d = d.mutable_data_ptr();
    how.c = p.add ? how.d : nullptr;
    const double first = time_of([&] { return gemm(how, false); });
    const double best = time_of([&] { return gemm(how, true); });
    const at::Tensor left = p.ta ? a.t() : a, right = p.tb ? b.t() : b;
    double aten = -1;
    if (p.out == DType::bf16) {
      aten = time_of(
          done([&] { p.add ? at::addmm_out(d, d, left, right) : at::mm_out(d, left, right); }));
    }
    const double flops =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) / 1e9;
    std::printf("%-28s %6ld %6ld %6ld  %7.3f %6.0f  %7.3f %6.0f  %7.3f %6.0f\n", p.name,
                static_cast<long>(p.m), static_cast<long>(p.n), static_cast<long>(p.k), first,
                flops / first, best, flops / best, aten, flops / aten);
  }

  // {without epilogue, with it, the kernel that it replaces}
  void epilogue(const char* name, Gemm how, Epilogue epilogue,
                const std::function<void()>& separate) const {
    how.epilogue = Epilogue::none;
    const double plain = time_of([&] { return gemm(how, true); });
    how.epilogue = epilogue;
    const double with = time_of([&] { return gemm(how, true); });
    const double extra = time_of(done(separate));
    std::printf("%-28s product %7.3f  with epilogue %7.3f  product + kernel %7.3f\n", name, plain,
                with, plain + extra);
  }

  void epilogues() const {
    const std::int64_t rows = 15360, in = 1600, out = 6400;
    const at::Tensor x = at::randn({rows, in}, bf16()), w = at::randn({out, in}, bf16());
    const at::Tensor bias = at::randn({out}, bf16());
    at::Tensor y = at::empty({rows, out}, bf16());
    const at::Tensor aux = at::empty_like(y), dw = at::empty_like(w), db = at::empty_like(bias);
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const at::Tensor scratch =
        at::empty({static_cast<std::int64_t>(kernels::cuda::column_scratch(size(rows), size(out)))},
                  bf16().dtype(at::kFloat));
    Gemm forward{.m = rows, .n = out, .k = in, .transpose_b = true};
    forward.a = x.const_data_ptr(), forward.b = w.const_data_ptr();
    forward.d = y.mutable_data_ptr(), forward.bias = bias.const_data_ptr();
    forward.aux = aux.mutable_data_ptr();
    epilogue("fc, bias", forward, Epilogue::bias, [&] { y.add_(bias); });
    epilogue("fc, bias and GELU", forward, Epilogue::gelu_bias, [&] {
      kernels::cuda::gelu_forward({.rows = size(rows),
                                   .cols = size(out),
                                   .x = aux.const_data_ptr(),
                                   .bias = bias.const_data_ptr()},
                                  y.mutable_data_ptr(), stream().native_handle());
    });
    Gemm weight{.m = out, .n = in, .k = rows, .transpose_a = true};
    weight.a = y.const_data_ptr(), weight.b = x.const_data_ptr();
    weight.d = dw.mutable_data_ptr(), weight.bias_gradient = db.mutable_data_ptr();
    epilogue("fc's weight, bias gradient", weight, Epilogue::bias_gradient, [&] {
      kernels::cuda::column_sums({.rows = size(rows), .cols = size(out), .x = y.const_data_ptr()},
                                 {db.mutable_data_ptr(), DType::bf16, false},
                                 scratch.mutable_data_ptr<float>(), stream().native_handle());
    });
    weight.c = weight.d;
    epilogue("the same, accumulating", weight, Epilogue::bias_gradient, [&] {
      kernels::cuda::column_sums({.rows = size(rows), .cols = size(out), .x = y.const_data_ptr()},
                                 {db.mutable_data_ptr(), DType::bf16, false},
                                 scratch.mutable_data_ptr<float>(), stream().native_handle());
    });
  }

 private:
  at::Tensor space_;
};

struct Heads {
  const char* name;
  std::int64_t batch, tokens, heads, kv_heads, dim;
};

void attention(const Heads& of) {
  const at::Tensor qkv =
      at::randn({of.batch, of.tokens, (of.heads + 2 * of.kv_heads) * of.dim}, bf16());
  const at::Tensor dout = at::randn({of.batch, of.tokens, of.heads * of.dim}, bf16());
  const double flops = 2.0 * static_cast<double>(of.batch * of.heads * of.dim) *
                       static_cast<double>(of.tokens) * static_cast<double>(of.tokens) / 1e9;
  const nn::AttentionChoice choice = nn::attention_kernel(qkv, of.heads, of.kv_heads);
  std::printf("%s: %s is selected: %s\n", of.name, nn::name(choice.kernel), choice.why);
  for (const auto kernel :
       {nn::AttentionKernel::cudnn, nn::AttentionKernel::flash, nn::AttentionKernel::efficient}) {
    try {
      std::vector<at::Tensor> kept;
      const double forward = time_of(
          done([&] { kept = nn::gpu_attention_forward(kernel, qkv, of.heads, of.kv_heads); }));
      const double backward = time_of(done(
          [&] { nn::gpu_attention_backward(kernel, qkv, of.heads, of.kv_heads, dout, kept); }));
      std::printf("  %-10s forward %7.3f ms %4.0f TFLOP/s  backward %7.3f ms %4.0f TFLOP/s\n",
                  nn::name(kernel), forward, flops / forward, backward, 2.5 * flops / backward);
    } catch (const c10::Error& error) {
      std::printf("  %-10s %s\n", nn::name(kernel), error.what_without_backtrace());
    }
  }
}

int run() {
  if (!torch::cuda::is_available()) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  if (const char* problem = kernels::cuda::gemm_problem()) {
    std::printf("skipped: %s\n", problem);
    return 0;
  }
  const at::NoGradGuard unrecorded;
  const Bench bench;
  std::printf("%-28s %6s %6s %6s  %14s  %14s  %14s\n", "product", "m", "n", "k", "first TFLOP/s",
              "best TFLOP/s", "ATen TFLOP/s");
  const std::int64_t n = 15360, c = 1600, h = 2560, v = 50304;
  for (const Product& p : std::vector<Product>{
           {"qkv", n, 3 * c, c, false, true},
           {"proj", n, c, c, false, true},
           {"fc", n, 4 * c, c, false, true},
           {"proj2", n, c, 4 * c, false, true},
           {"qkv's input", n, c, 3 * c, false, false},
           {"proj's input", n, c, c, false, false},
           {"fc's input", n, c, 4 * c, false, false},
           {"proj2's input", n, 4 * c, c, false, false},
           {"qkv's weight", 3 * c, c, n, true, false},
           {"proj's weight", c, c, n, true, false},
           {"fc's weight", 4 * c, c, n, true, false},
           {"proj2's weight", c, 4 * c, n, true, false},
           {"fc's weight, added", 4 * c, c, n, true, false, DType::bf16, true},
           {"fc's weight, fp32", 4 * c, c, n, true, false, DType::f32},
           {"fc's weight, fp32, added", 4 * c, c, n, true, false, DType::f32, true},
           {"head", h, v, c, false, true},
           {"head's input", h, c, v, false, false},
           {"head's weight, added", v, c, h, true, false, DType::bf16, true},
           {"head's weight, fp32, added", v, c, h, true, false, DType::f32, true}}) {
    bench.product(p);
  }
  bench.epilogues();
  attention({"gpt2-xl, batch 15", 15, 1024, 25, 25, 64});
  attention({"llama-like, batch 4", 4, 4096, 32, 8, 128});
  return 0;
}

}  // namespace
}  // namespace tessera

int main() { return tessera::run(); }
