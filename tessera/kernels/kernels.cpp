// The public kernels. Each calls the best instruction set of this processor.
#include <array>
#include <stdexcept>

#include "tessera/core/cpu.h"
#include "tessera/kernels/sets.h"

namespace tessera::kernels {

// Namespaces are Highway's names; AVX3 is AVX-512.
namespace N_NEON {
extern const KernelSet set;
}
namespace N_SSSE3 {
extern const KernelSet set;
}
namespace N_AVX2 {
extern const KernelSet set;
}
namespace N_AVX3 {
extern const KernelSet set;
}

namespace {

struct Usable {
  std::array<const KernelSet*, 3> sets{};
  std::size_t count = 0;
};

Usable find_usable() {
  Usable found;
#if defined(__aarch64__)
  found.sets[found.count++] = &N_NEON::set;
#elif defined(__x86_64__)
  if (!has_ssse3()) {
    throw std::runtime_error(
        "This processor does not support SSSE3, which the kernels require. Use a processor made "
        "after 2011.");
  }
  found.sets[found.count++] = &N_SSSE3::set;
  if (has_avx2()) found.sets[found.count++] = &N_AVX2::set;
  if (has_avx512()) found.sets[found.count++] = &N_AVX3::set;
#endif
  return found;
}

const Usable& usable() {
  static const Usable found = find_usable();
  return found;
}

const KernelSet& best() { return *usable().sets[usable().count - 1]; }

}  // namespace

std::span<const KernelSet* const> usable_sets() { return {usable().sets.data(), usable().count}; }

void update(const rules::Rule& rule, const rules::Step& step, const ParamShard& shard, float* a,
            float* b) {
  const void* settings = std::visit([](const auto& r) -> const void* { return &r; }, rule);
  best().update.of[rule.index()](settings, step, shard, a, b);
}

void round_to_bf16_stochastic(const float* from, std::uint16_t* to, std::size_t count,
                              std::uint64_t begin, std::uint64_t stream, std::uint64_t seed,
                              std::int64_t step) {
  best().round_to_bf16_stochastic(from, to, count, begin, stream, seed, step);
}

double sum_of_squares(const void* x, Type type, std::size_t n) {
  return best().sum_of_squares(x, type, n);
}

void decode_moments(MomentCode code, const std::byte* from, float* to, std::size_t blocks) {
  best().decode_moments(code, from, to, blocks);
}

void encode_moments(MomentCode code, const float* from, std::byte* to, std::size_t blocks,
                    const MomentNoise& noise) {
  best().encode_moments(code, from, to, blocks, noise);
}

void gelu_forward(const Gelu& in, void* y) { best().gelu_forward(in, y); }

void gelu_backward(const Gelu& in, const void* dy, void* dx, float* dbias) {
  best().gelu_backward(in, dy, dx, dbias);
}

void layer_norm_forward(const LayerNorm& in, void* y, void* sum, float* mean, float* rstd) {
  best().layer_norm_forward(in, y, sum, mean, rstd);
}

void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const void* dy,
                         const void* dsum, void* dx, float* dweight, float* dbias) {
  best().layer_norm_backward(in, mean, rstd, dy, dsum, dx, dweight, dbias);
}

void softmax_causal_forward(const CausalRows& in, void* scores, float* lse) {
  best().softmax_causal_forward(in, scores, lse);
}

void softmax_causal_backward(const CausalRows& in, void* scores, void* dprobs, const float* lse) {
  best().softmax_causal_backward(in, scores, dprobs, lse);
}

void cross_entropy_rows(void* logits, Type type, std::size_t rows, std::size_t cols,
                        const std::int64_t* targets, float* losses) {
  best().cross_entropy_rows(logits, type, rows, cols, targets, losses);
}

void widen(const std::uint16_t* from, float* to, std::size_t n) { best().widen(from, to, n); }
void narrow(const float* from, std::uint16_t* to, std::size_t n) { best().narrow(from, to, n); }

void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last) {
  best().few_rows_linear(in, y, first, last);
}

void cached_attention(const CachedAttention& in, float* scores, float* out) {
  best().cached_attention(in, scores, out);
}

void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y) {
  best().rms_norm_rows(x, weight, eps, rows, cols, y);
}

void silu(float* x, std::size_t n) { best().silu(x, n); }
void soft_cap(float* x, float cap, std::size_t n) { best().soft_cap(x, cap, n); }

}  // namespace tessera::kernels
