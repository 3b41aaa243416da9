// Compares each kernel with memcpy, on one thread. Bytes are those read and written, also for
// memcpy, so bytes per second are directly comparable. The optimizer's arrays are far larger than
// the caches; the layers have the sizes of a GPT with 1024 tokens per micro-batch.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "tessera/core/half.h"
#include "tessera/kernels/layers.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::kernels {
namespace {

constexpr std::size_t elements = std::size_t{8} << 20;

// Random numbers of ordinary size, in either type.
std::vector<unsigned char> numbers(Type type, std::size_t n) {
  std::vector<unsigned char> bytes(n * size_of(type));
  for (std::size_t i = 0; i < n; ++i) {
    const float value = static_cast<float>(i * 2654435761u % 4096) / 1024.0f - 2.0f;
    const std::uint16_t half = to_bf16(value);
    if (type == Type::f32) {
      std::memcpy(&bytes[4 * i], &value, 4);
    } else {
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  }
  return bytes;
}

void report(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void copy(benchmark::State& state) {
  const auto from = numbers(Type::f32, 4 * elements);
  auto to = from;
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  report(state, 2 * from.size());
}
BENCHMARK(copy);

void adamw_bench(benchmark::State& state, Type grad_type, Type param_type, bool with_master) {
  const auto grad = numbers(grad_type, elements);
  auto param = numbers(param_type, elements);
  auto m = numbers(Type::f32, elements), v = std::vector<unsigned char>(4 * elements);
  auto master = numbers(Type::f32, with_master ? elements : 0);
  const ParamShard shard{.param = param.data(),
                         .param_type = param_type,
                         .master = with_master ? reinterpret_cast<float*>(master.data()) : nullptr,
                         .grad = grad.data(),
                         .grad_type = grad_type,
                         .count = elements};
  for (auto _ : state) {
    update(rules::AdamW{}, {}, shard, reinterpret_cast<float*>(m.data()),
           reinterpret_cast<float*>(v.data()));
    benchmark::ClobberMemory();
  }
  // Gradient in; moments in and out; master in and out and param out, or param in and out.
  const std::size_t value = with_master ? 8 + size_of(param_type) : 2 * size_of(param_type);
  report(state, elements * (size_of(grad_type) + 16 + value));
}
BENCHMARK_CAPTURE(adamw_bench, fp32, Type::f32, Type::f32, false);
BENCHMARK_CAPTURE(adamw_bench, bf16, Type::bf16, Type::bf16, true);
BENCHMARK_CAPTURE(adamw_bench, bf16_fp32grad, Type::f32, Type::bf16, true);
BENCHMARK_CAPTURE(adamw_bench, bf16_nomaster, Type::bf16, Type::bf16, false);

void sgd_bench(benchmark::State& state) {
  const auto grad = numbers(Type::f32, elements);
  auto param = grad, velocity = grad;
  for (auto _ : state) {
    update(rules::SGD{.momentum = 0.9}, {},
           {.param = param.data(), .grad = grad.data(), .count = elements},
           reinterpret_cast<float*>(velocity.data()));
    benchmark::ClobberMemory();
  }
  report(state, elements * 20);
}
BENCHMARK(sgd_bench);

void norm_bench(benchmark::State& state, Type type) {
  const auto x = numbers(type, elements);
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares(x.data(), type, elements));
  report(state, x.size());
}
BENCHMARK_CAPTURE(norm_bench, fp32, Type::f32);
BENCHMARK_CAPTURE(norm_bench, bf16, Type::bf16);

constexpr std::size_t tokens = 1024, hidden = 512, wide = 2048, vocabulary = 8192;

void gelu_bench(benchmark::State& state, Type type, bool backward) {
  const auto x = numbers(type, tokens * wide);
  auto y = x;
  const std::vector<float> bias(wide, 0.1f);
  std::vector<float> dbias(wide);
  const Gelu in{type, tokens, wide, x.data(), bias.data()};
  for (auto _ : state) {
    if (backward) {
      gelu_backward(in, x.data(), y.data(), dbias.data());
    } else {
      gelu_forward(in, y.data());
    }
    benchmark::ClobberMemory();
  }
  report(state, (backward ? 3 : 2) * x.size());
}
BENCHMARK_CAPTURE(gelu_bench, forward_fp32, Type::f32, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(gelu_bench, backward_fp32, Type::f32, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(gelu_bench, forward_bf16, Type::bf16, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(gelu_bench, backward_bf16, Type::bf16, true)->Unit(benchmark::kMicrosecond);

void layer_norm_bench(benchmark::State& state, Type type, bool backward) {
  const auto x = numbers(type, tokens * hidden);
  auto y = x, sum = x;
  const std::vector<float> weight(hidden, 1.0f);
  std::vector<float> mean(tokens), rstd(tokens, 1.0f), dweight(hidden), dbias(hidden);
  const LayerNorm in{type, tokens, hidden, x.data(), x.data(), weight.data(), weight.data()};
  for (auto _ : state) {
    if (backward) {
      layer_norm_backward(in, mean.data(), rstd.data(), x.data(), x.data(), y.data(),
                          dweight.data(), dbias.data());
    } else {
      layer_norm_forward(in, y.data(), sum.data(), mean.data(), rstd.data());
    }
    benchmark::ClobberMemory();
  }
  report(state, 4 * x.size());
}
BENCHMARK_CAPTURE(layer_norm_bench, forward_fp32, Type::f32, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(layer_norm_bench, backward_fp32, Type::f32, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(layer_norm_bench, forward_bf16, Type::bf16, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(layer_norm_bench, backward_bf16, Type::bf16, true)->Unit(benchmark::kMicrosecond);

// 8 heads of 256 rows and columns.
void softmax_bench(benchmark::State& state, Type type, bool backward) {
  constexpr std::size_t rows = 256;
  auto scores = numbers(type, 8 * rows * rows);
  auto gradient = scores;
  std::vector<float> lse(rows, 6.0f);
  const CausalRows in{type, rows, rows, 1, 0.125f};
  for (auto _ : state) {
    for (std::size_t h = 0; h < 8; ++h) {
      unsigned char* s = scores.data() + h * rows * rows * size_of(type);
      unsigned char* d = gradient.data() + h * rows * rows * size_of(type);
      if (backward) {
        softmax_causal_backward(in, s, d, lse.data());
      } else {
        softmax_causal_forward(in, s, lse.data());
      }
    }
    benchmark::ClobberMemory();
  }
  report(state, (backward ? 4 : 2) * scores.size());
}
BENCHMARK_CAPTURE(softmax_bench, forward_fp32, Type::f32, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(softmax_bench, backward_fp32, Type::f32, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(softmax_bench, forward_bf16, Type::bf16, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(softmax_bench, backward_bf16, Type::bf16, true)->Unit(benchmark::kMicrosecond);

void cross_entropy_bench(benchmark::State& state, Type type) {
  auto logits = numbers(type, tokens * vocabulary);
  const std::vector<std::int64_t> targets(tokens, 7);
  std::vector<float> losses(tokens);
  for (auto _ : state) {
    cross_entropy_rows(logits.data(), type, tokens, vocabulary, targets.data(), losses.data());
    benchmark::ClobberMemory();
  }
  report(state, 2 * logits.size());
}
BENCHMARK_CAPTURE(cross_entropy_bench, fp32, Type::f32);
BENCHMARK_CAPTURE(cross_entropy_bench, bf16, Type::bf16);

}  // namespace
}  // namespace tessera::kernels

BENCHMARK_MAIN();
