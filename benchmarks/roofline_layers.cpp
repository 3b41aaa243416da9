// The layers between the matrix products.
#include "benchmarks/roofline.h"
#include "tessera/kernels/cuda/layers.h"

namespace tessera::roofline {
namespace {

using namespace kernels::cuda;

constexpr std::size_t kElement = 2;  // bf16

std::string text(std::size_t rows, std::size_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void norms(Roofline& roofline, std::size_t rows, std::size_t cols) {
  const std::size_t n = rows * cols * kElement;
  Norm in;
  in.rows = rows;
  in.cols = cols;
  in.x = roofline.memory(n);
  in.residual = roofline.memory(n);
  in.weight = roofline.memory(cols * kElement);
  in.bias = roofline.memory(cols * kElement);
  void* y = roofline.memory(n);
  void* sum = roofline.memory(n);
  void* dx = roofline.memory(n);
  auto* mean = static_cast<float*>(roofline.memory(rows * 4));
  auto* rstd = static_cast<float*>(roofline.memory(rows * 4));
  auto* scratch = static_cast<float*>(roofline.memory(4 * column_scratch(rows, 3 * cols)));
  auto* dx_sums = static_cast<float*>(roofline.memory(cols * 4));
  const Sink dw{roofline.memory(cols * kElement), DType::bf16, false};
  const Sink db{roofline.memory(cols * kElement), DType::bf16, false};
  const double one = static_cast<double>(n);
  const auto run = [&](const char* name, double matrices, const std::function<void(Stream)>& f) {
    roofline.measure(name, text(rows, cols), matrices * one, 0, f);
  };
  run("add + norm", 4, [&](Stream s) { norm_forward(in, y, sum, mean, rstd, s); });
  Norm alone = in;
  alone.residual = nullptr;
  run("norm", 2, [&](Stream s) { norm_forward(alone, y, nullptr, mean, rstd, s); });
  run("norm recompute", 2, [&](Stream s) { norm_recompute(alone, mean, rstd, y, s); });
  run("norm backward + past", 4, [&](Stream s) {
    norm_backward(alone, mean, rstd, in.residual, sum, dx, nullptr, dw, db, nullptr, scratch, s);
  });
  run("norm backward + past + y", 5, [&](Stream s) {
    norm_backward(alone, mean, rstd, in.residual, sum, dx, y, dw, db, nullptr, scratch, s);
  });
  run("norm backward + past + y + sums", 5, [&](Stream s) {
    norm_backward(alone, mean, rstd, in.residual, sum, dx, y, dw, db, dx_sums, scratch, s);
  });
  roofline.forget();
}

void activations(Roofline& roofline, std::size_t rows, std::size_t cols) {
  const std::size_t n = rows * cols * kElement;
  const double one = static_cast<double>(n);
  Gelu in;
  in.rows = rows;
  in.cols = cols;
  in.x = roofline.memory(2 * n);
  in.bias = roofline.memory(cols * kElement);
  void* dy = roofline.memory(n);
  void* y = roofline.memory(n);
  void* dx = roofline.memory(2 * n);
  auto* scratch = static_cast<float*>(roofline.memory(4 * column_scratch(rows, cols)));
  const Sink db{roofline.memory(cols * kElement), DType::bf16, false};
  const auto run = [&](const char* name, double matrices, const std::function<void(Stream)>& f) {
    roofline.measure(name, text(rows, cols), matrices * one, 0, f);
  };
  run("bias + GELU", 2, [&](Stream s) { gelu_forward(in, y, s); });
  run("GELU backward", 3, [&](Stream s) { gelu_backward(in, dy, dx, nullptr, {}, scratch, s); });
  run("GELU backward + dbias", 3,
      [&](Stream s) { gelu_backward(in, dy, dx, nullptr, db, scratch, s); });
  run("GELU backward + y + dbias", 4,
      [&](Stream s) { gelu_backward(in, dy, dx, y, db, scratch, s); });
  run("column sums", 1, [&](Stream s) {
    column_sums({DType::bf16, rows, cols, in.x}, db, scratch, s);
  });
  const SwiGlu gated{DType::bf16, rows, cols, in.x};
  run("SwiGLU", 3, [&](Stream s) { swiglu_forward(gated, y, s); });
  run("SwiGLU backward", 5, [&](Stream s) { swiglu_backward(gated, dy, dx, nullptr, s); });
  roofline.forget();
}

void attention(Roofline& roofline, std::size_t rows, std::size_t tokens, std::size_t heads,
               std::size_t dim) {
  const std::size_t cols = heads * dim, n = rows * cols * kElement;
  void* x = roofline.memory(3 * n);
  const Rotary how{DType::bf16, rows, 3 * cols, tokens, 2 * heads, dim, 1e4, false};
  roofline.measure("rotary of q and k", text(rows, 2 * cols), 4.0 * static_cast<double>(n), 0,
                   [&](Stream s) { rotary(how, x, s); });
  SideBySide in;
  in.rows = rows;
  for (int i = 0; i < 3; ++i) in.parts[i] = roofline.memory(n), in.cols[i] = cols;
  roofline.measure("side by side", text(rows, 3 * cols), 6.0 * static_cast<double>(n), 0,
                   [&](Stream s) { side_by_side(in, x, nullptr, nullptr, s); });
  auto* sums = static_cast<float*>(roofline.memory(4 * 3 * cols));
  auto* scratch = static_cast<float*>(roofline.memory(4 * column_scratch(rows, 3 * cols)));
  roofline.measure("side by side + sums", text(rows, 3 * cols), 6.0 * static_cast<double>(n), 0,
                   [&](Stream s) { side_by_side(in, x, sums, scratch, s); });
  roofline.forget();
}

void loss(Roofline& roofline, std::size_t rows, std::size_t cols, std::size_t classes) {
  const std::size_t n = rows * cols * kElement;
  void* logits = roofline.memory(n);
  auto* losses = static_cast<float*>(roofline.memory(rows * 4));
  const auto* targets = static_cast<const std::int64_t*>(roofline.memory(rows * 8, true));
  roofline.measure(
      "cross entropy", text(rows, cols), 2.0 * static_cast<double>(n), 0, [&](Stream s) {
        cross_entropy({DType::bf16, rows, cols, classes, targets}, logits, losses, nullptr, s);
      });
  roofline.forget();
}

}  // namespace

// gpt2-xl at batch 15 and 1, and some of Llama's widths.
void measure_layers(Roofline& roofline) {
  for (const std::size_t rows : {15360u, 1024u}) {
    norms(roofline, rows, 1600);
    activations(roofline, rows, 6400);
    attention(roofline, rows, 1024, 25, 64);
    loss(roofline, rows == 15360 ? 4096 : rows, 50304, 50257);
  }
  for (const std::size_t cols : {768u, 3072u, 4096u, 8192u, 14336u}) {
    norms(roofline, 8192, cols);
  }
  activations(roofline, 8192, 14336);
  attention(roofline, 8192, 4096, 32, 128);
  loss(roofline, 2048, 128256, 128256);
}

}  // namespace tessera::roofline
