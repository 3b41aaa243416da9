// Reference kernels, one element at a time and (layers) in double precision. Tests compare the fast
// kernels with them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tessera/core/half.h"
#include "tessera/core/philox.h"
#include "tessera/kernels/layers.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::kernels::reference {
namespace {

float get(const void* from, Type type, std::size_t i) {
  return type == Type::f32 ? static_cast<const float*>(from)[i]
                           : from_bf16(static_cast<const std::uint16_t*>(from)[i]);
}

void put(void* to, Type type, std::size_t i, double value) {
  const auto rounded = static_cast<float>(value);
  if (type == Type::f32) {
    static_cast<float*>(to)[i] = rounded;
  } else {
    static_cast<std::uint16_t*>(to)[i] = to_bf16(rounded);
  }
}

constexpr double pi = 3.14159265358979323846;

double tanh_argument(double x) { return std::sqrt(2 / pi) * (x + 0.044715 * x * x * x); }

}  // namespace

std::uint32_t noise_of(std::uint64_t index, std::uint64_t stream, std::uint64_t seed,
                       std::int64_t step) {
  const std::uint64_t g = index / 128, h = index / 64 % 2, w = index / 16 % 4, j = index % 16;
  const std::uint64_t counter = (static_cast<std::uint64_t>(step) << 32) + 16 * g + j;
  const std::uint32_t word = Philox(seed, stream).block(counter)[w];
  return h == 0 ? word & 0xffffu : word >> 16;
}

std::uint16_t to_bf16_stochastic(float value, std::uint64_t index, std::uint64_t stream,
                                 std::uint64_t seed, std::int64_t step) {
  const std::uint32_t noise = noise_of(index, stream, seed, step);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + noise) >> 16);
}

double sum_of_squares(const void* x, Type type, std::size_t n) {
  double part[16] = {};
  for (std::size_t i = 0; i < n; ++i) {
    const double value = get(x, type, i);
    part[i % 16] += value * value;
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) part[i] += part[i + half];
  }
  return part[0];
}

void gelu_forward(const Gelu& in, void* y) {
  for (std::size_t i = 0; i < in.rows * in.cols; ++i) {
    double x = get(in.x, in.type, i);
    if (in.bias != nullptr) x += in.bias[i % in.cols];
    // 1 + tanh u, without cancellation where tanh u is near -1.
    const double gate = 2 / (1 + std::exp(-2 * tanh_argument(x)));
    put(y, in.type, i, 0.5 * x * gate);
  }
}

void gelu_backward(const Gelu& in, const void* dy, void* dx, float* dbias) {
  std::vector<double> sums(in.cols);
  for (std::size_t i = 0; i < in.rows * in.cols; ++i) {
    double x = get(in.x, in.type, i);
    if (in.bias != nullptr) x += in.bias[i % in.cols];
    const double t = std::tanh(tanh_argument(x));
    const double slope = std::sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
    const double d = get(dy, in.type, i) * 0.5 * (1 + t + x * (1 - t * t) * slope);
    put(dx, in.type, i, d);
    sums[i % in.cols] += d;
  }
  if (dbias == nullptr) return;
  for (std::size_t c = 0; c < in.cols; ++c) dbias[c] += static_cast<float>(sums[c]);
}

void layer_norm_forward(const LayerNorm& in, void* y, void* sum, float* mean, float* rstd) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    const void* s = in.x;
    if (in.residual != nullptr) {
      for (std::size_t i = r * in.cols; i < (r + 1) * in.cols; ++i) {
        put(sum, in.type, i, double{get(in.x, in.type, i)} + get(in.residual, in.type, i));
      }
      s = sum;
    }
    double total = 0, squares = 0;
    for (std::size_t c = 0; c < in.cols; ++c) total += get(s, in.type, r * in.cols + c);
    const double middle = total / static_cast<double>(in.cols);
    for (std::size_t c = 0; c < in.cols; ++c) {
      squares += std::pow(get(s, in.type, r * in.cols + c) - middle, 2);
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(in.cols) + in.eps);
    for (std::size_t c = 0; c < in.cols; ++c) {
      const double z = (get(s, in.type, r * in.cols + c) - middle) * scale;
      put(y, in.type, r * in.cols + c, z * in.weight[c] + in.bias[c]);
    }
    mean[r] = static_cast<float>(middle);
    rstd[r] = static_cast<float>(scale);
  }
}

void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const void* dy,
                         const void* dsum, void* dx, float* dweight, float* dbias) {
  std::vector<double> weights(in.cols), biases(in.cols);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const auto z = [&](std::size_t c) {
      return (double{get(in.x, in.type, r * in.cols + c)} - mean[r]) * rstd[r];
    };
    const auto up = [&](std::size_t c) { return double{get(dy, in.type, r * in.cols + c)}; };
    double g_mean = 0, gz_mean = 0;
    for (std::size_t c = 0; c < in.cols; ++c) {
      g_mean += up(c) * in.weight[c] / static_cast<double>(in.cols);
      gz_mean += up(c) * in.weight[c] * z(c) / static_cast<double>(in.cols);
      weights[c] += up(c) * z(c);
      biases[c] += up(c);
    }
    for (std::size_t c = 0; c < in.cols; ++c) {
      double d = rstd[r] * (up(c) * in.weight[c] - g_mean - z(c) * gz_mean);
      if (dsum != nullptr) d += get(dsum, in.type, r * in.cols + c);
      put(dx, in.type, r * in.cols + c, d);
    }
  }
  for (std::size_t c = 0; c < in.cols; ++c) {
    dweight[c] += static_cast<float>(weights[c]);
    dbias[c] += static_cast<float>(biases[c]);
  }
}

namespace {
std::size_t skipped(const CausalRows& in, std::size_t row) {
  return in.skipped == nullptr ? 0 : static_cast<std::size_t>(in.skipped[row]);
}
}  // namespace

void softmax_causal_forward(const CausalRows& in, void* scores, float* lse) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    double top = -INFINITY, sum = 0;
    const auto score = [&](std::size_t c) {
      return double{in.scale} * get(scores, in.type, r * in.cols + c);
    };
    const std::size_t n = std::min(in.first + r, in.cols), begin = skipped(in, r);
    for (std::size_t c = begin; c < n; ++c) top = std::max(top, score(c));
    for (std::size_t c = begin; c < n; ++c) sum += std::exp(score(c) - top);
    for (std::size_t c = 0; c < in.cols; ++c) {
      put(scores, in.type, r * in.cols + c,
          c >= begin && c < n ? std::exp(score(c) - top) / sum : 0.0);
    }
    lse[r] = static_cast<float>(top + std::log(sum));
  }
}

void softmax_causal_backward(const CausalRows& in, void* scores, void* dprobs, const float* lse) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::size_t n = std::min(in.first + r, in.cols), begin = skipped(in, r);
    double dot = 0;
    std::vector<double> p(in.cols);
    for (std::size_t c = begin; c < n; ++c) {
      p[c] = std::exp(double{in.scale} * get(scores, in.type, r * in.cols + c) - lse[r]);
      dot += p[c] * get(dprobs, in.type, r * in.cols + c);
    }
    if (in.delta != nullptr) dot = in.delta[r];
    for (std::size_t c = 0; c < in.cols; ++c) {
      const double d = p[c] * (get(dprobs, in.type, r * in.cols + c) - dot) * in.scale;
      put(dprobs, in.type, r * in.cols + c, c >= begin && c < n ? d : 0.0);
      put(scores, in.type, r * in.cols + c, p[c]);
    }
  }
}

void cross_entropy_rows(void* logits, Type type, std::size_t rows, std::size_t cols,
                        const std::int64_t* targets, float* losses) {
  for (std::size_t r = 0; r < rows; ++r) {
    double top = -INFINITY, sum = 0;
    for (std::size_t c = 0; c < cols; ++c) {
      top = std::max(top, double{get(logits, type, r * cols + c)});
    }
    for (std::size_t c = 0; c < cols; ++c) sum += std::exp(get(logits, type, r * cols + c) - top);
    const bool counts = targets[r] >= 0;
    const auto target = static_cast<std::size_t>(targets[r]);
    losses[r] = 0;
    if (counts) {
      losses[r] = static_cast<float>(top + std::log(sum) - get(logits, type, r * cols + target));
    }
    for (std::size_t c = 0; c < cols; ++c) {
      const double p = std::exp(get(logits, type, r * cols + c) - top) / sum;
      put(logits, type, r * cols + c, counts ? p - (c == target ? 1.0 : 0.0) : 0.0);
    }
  }
}

}  // namespace tessera::kernels::reference
