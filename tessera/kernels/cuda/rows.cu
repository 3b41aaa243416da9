// Rotary embeddings, and concatenation of matrices along the columns.
#include <cmath>

#include "tessera/kernels/cuda/columns.cuh"
#include "tessera/kernels/cuda/layers.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kRotaryThreads = 128;
constexpr std::size_t kRotaryPairs = 256;  // maximum dim / 2

// Rotation of each pair per token, in whole turns. In fp64, so that the angle of token 131072,
// reduced to below one turn, is still exact to fp32 precision.
struct Turns {
  double per_token[kRotaryPairs];
};

// Reads V consecutive floats from shared memory.
template <int V>
__device__ __forceinline__ void read_shared(const float* from, float (&to)[V]) {
  if constexpr (V == 1) {
    to[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kRotaryThreads)
    rotary_kernel(Rotary args, T* x, const __grid_constant__ Turns turns) {
  constexpr int kAtOnce = 2;
  __shared__ __align__(16) float cosines[kRotaryPairs];
  __shared__ __align__(16) float sines[kRotaryPairs];
  const unsigned half = static_cast<unsigned>(args.dim / 2), across = half / V;
  const unsigned all = static_cast<unsigned>(args.heads) * across;
  const std::size_t row = blockIdx.x;
  x += row * args.stride;

  Pack<T, V> low[kAtOnce], high[kAtOnce];
  unsigned pair[kAtOnce];
  T* place[kAtOnce];
  const auto read = [&](unsigned first) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const unsigned at = first + u * kRotaryThreads;
      if (at >= all) break;
      pair[u] = at % across * V;
      place[u] = x + (std::size_t{at / across} * args.dim + pair[u]);
      low[u] = Pack<T, V>::load(place[u]);
      high[u] = Pack<T, V>::load(place[u] + half);
    }
  };
  read(threadIdx.x);  // loads overlap with computing the angles

  std::size_t position = row % args.tokens;
  if (args.chunk > 0) {
    const std::size_t c = position >= args.chunk ? 1 : 0;
    position = args.first[c] + position - c * args.chunk;
  }
  const double token = static_cast<double>(position);
  for (unsigned i = threadIdx.x; i < half; i += kRotaryThreads) {
    const double angle = token * turns.per_token[i];
    float s, c;
    sincospif(2.0f * static_cast<float>(angle - rint(angle)), &s, &c);
    cosines[i] = args.gain * c;
    sines[i] = args.gain * (args.back ? -s : s);
  }
  __syncthreads();

  for (unsigned first = threadIdx.x; first < all;) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * kRotaryThreads >= all) break;
      float a[V], b[V], c[V], s[V];
      low[u].get(a);
      high[u].get(b);
      read_shared<V>(cosines + pair[u], c);
      read_shared<V>(sines + pair[u], s);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float old = a[i];
        a[i] = old * c[i] - b[i] * s[i];
        b[i] = b[i] * c[i] + old * s[i];
      }
      Pack<T, V>::of(a).store(place[u]);
      Pack<T, V>::of(b).store(place[u] + half);
    }
    first += kAtOnce * kRotaryThreads;
    read(first);
  }
}

template <class T>
struct Parts {
  const T* data[3];
  std::size_t cols[3];
};

template <class T, int V, bool Sums>
__global__ void __launch_bounds__(32 * kTileRows)
    side_by_side_kernel(Tiles tiles, std::size_t cols, Parts<T> parts, T* out, float* scratch,
                        float* largest) {
  const std::size_t pack = tiles.pack();
  const std::size_t end = pack < tiles.packs ? tiles.end_row() : 0;  // no rows beyond the last pack
  float sums[V] = {}, top = 0;
  out += pack * V;
  const T* from = parts.data[0];
  std::size_t column = pack * V, width = parts.cols[0];
  if (column >= width) {
    column -= width;
    from = parts.data[1];
    width = parts.cols[1];
    if (column >= width) {
      column -= width;
      from = parts.data[2];
      width = parts.cols[2];
    }
  }
  from += column;
  for (std::size_t row = tiles.first_row(); row < end; row += kTileStep) {
    Pack<T, V> packs[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      if (r < end) packs[u] = Pack<T, V>::load(from + r * width);
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      if (r >= end) break;
      packs[u].store(out + r * cols);
      if (Sums || largest != nullptr) {
        float values[V];
        packs[u].get(values);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sums[i] += values[i];
          top = fmaxf(top, fabsf(values[i]));
        }
      }
    }
  }
  raise_largest<T>(largest, top);
  if constexpr (Sums) store_partial_sums<V>(tiles, cols, sums, scratch);
}

}  // namespace

void rotary(const Rotary& args, void* x, Stream stream) {
  if (args.rows == 0 || args.heads == 0 || args.dim == 0) return;
  if (args.dim % 2 != 0 || args.dim / 2 > kRotaryPairs || args.tokens == 0 ||
      args.heads * args.dim > args.stride) {
    throw UsageError("rotary: " + std::to_string(args.heads) + " heads of width " +
                     std::to_string(args.dim) + " in rows of " + std::to_string(args.stride) +
                     " elements with " + std::to_string(args.tokens) +
                     " tokens: the width must be even and at most " +
                     std::to_string(2 * kRotaryPairs) +
                     ", the heads must fit into a row, and there must be at least one token.");
  }
  if (args.chunk > 0 && 2 * args.chunk != args.tokens) {
    throw UsageError("rotary: chunks of " + std::to_string(args.chunk) +
                     " tokens in sequences of " + std::to_string(args.tokens) +
                     ": a sequence must have two chunks.");
  }
  Turns turns{};
  for (std::size_t i = 0; i < args.dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(args.dim);
    const double rate = args.rates != nullptr ? args.rates[i] : std::pow(args.base, exponent);
    turns.per_token[i] = rate / (2 * 3.14159265358979323846);
  }
  with_type(args.type, "rotary", [&]<class T>() {
    constexpr int W = kWide<T>;
    const bool whole = args.dim / 2 % W == 0 && args.stride % W == 0 && is_aligned(x);
    const auto kernel = whole ? &rotary_kernel<T, W> : &rotary_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(args.rows), kRotaryThreads, 0, native(stream)>>>(
        args, static_cast<T*>(x), turns);
    check_launch("rotary", args.rows, args.stride);
  });
}

void side_by_side(const SideBySide& in, void* out, float* sums, float* scratch, Stream stream) {
  const std::size_t cols = in.cols[0] + in.cols[1] + in.cols[2];
  if (cols == 0) return;
  with_type(in.type, "side_by_side", [&]<class T>() {
    Parts<T> parts;
    bool whole = is_aligned(out);
    for (int i = 0; i < 3; ++i) {
      parts.data[i] = static_cast<const T*>(in.parts[i]);
      parts.cols[i] = in.cols[i];
      whole = whole && in.cols[i] % kWide<T> == 0 && is_aligned(in.parts[i]);
    }
    constexpr int W = kWide<T>;
    const Tiles tiles = make_tiles(in.rows, cols, whole ? W : 1, sums != nullptr);
    const auto kernel =
        sums == nullptr
            ? (whole ? &side_by_side_kernel<T, W, false> : &side_by_side_kernel<T, 1, false>)
            : (whole ? &side_by_side_kernel<T, W, true> : &side_by_side_kernel<T, 1, true>);
    if (in.rows > 0) {
      kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(
          tiles, cols, parts, static_cast<T*>(out), scratch, in.largest);
      check_launch("side_by_side", in.rows, cols);
    }
    finish_columns(scratch, tiles.groups, {cols, 1, {{sums, DType::f32, false}}}, stream);
  });
}

}  // namespace tessera::kernels::cuda
