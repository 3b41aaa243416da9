// Update rules and stochastic rounding for one instruction set: see [Note: sets] in core/simd.h.
//
// [Note: groups] Elements are processed in groups of 128, counted from the beginning of the
// parameter. All groups go through one loop that is never inlined; a partial group at either end of
// a shard is first copied into a full one. Thus every element is computed by the same instructions,
// wherever shards end.
#pragma once

#include <cstring>

#include "tessera/core/philox.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/rules_impl.h"
#include "tessera/kernels/sets.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::size_t group = 128;
constexpr std::size_t noise_words = group / 2;

// ---- noise ----

// Computes the upper and lower halves of a · b.
TESSERA_INLINE void multiply(U a, std::uint32_t b, U& high, U& low) {
#if HWY_TARGET == HWY_NEON  // Highway's MulEven shuffles its operands first
  const auto even = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a.raw), vdup_n_u32(b)));
  const auto odd = vreinterpretq_u32_u64(vmull_high_u32(a.raw, vdupq_n_u32(b)));
  low = U(vuzp1q_u32(even, odd));
  high = U(vuzp2q_u32(even, odd));
#else
  constexpr Tag<std::uint64_t> wide;
  const V<std::uint64_t> even = hn::MulEven(a, splat(b));
  const U shifted = hn::BitCast(words, hn::ShiftRight<32>(hn::BitCast(wide, a)));
  const V<std::uint64_t> odd = hn::MulEven(shifted, splat(b));
  low = hn::OddEven(hn::BitCast(words, hn::ShiftLeft<32>(odd)), hn::BitCast(words, even));
  high = hn::OddEven(hn::BitCast(words, odd), hn::BitCast(words, hn::ShiftRight<32>(even)));
#endif
}

struct NoiseKey {
  std::uint64_t seed = 0, stream = 0;
  std::uint32_t step = 0;
};

// noise[16w + j] = word w of block (step << 32) + 16 · number + j.
TESSERA_INLINE void make_noise(const NoiseKey& key, std::uint32_t number, std::uint32_t* noise) {
  static_assert(16 % lanes == 0);
  constexpr std::size_t blocks = 16 / lanes;  // interleaved: each is one long chain
  std::uint32_t counters[16];
  for (std::uint32_t j = 0; j < 16; ++j) counters[j] = 16 * number + j;
  U c0[blocks], c1[blocks], c2[blocks], c3[blocks];
  TESSERA_UNROLL for (std::size_t k = 0; k < blocks; ++k) {
    c0[k] = hn::LoadU(words, counters + k * lanes);
    c1[k] = splat(key.step);
    c2[k] = splat(static_cast<std::uint32_t>(key.stream));
    c3[k] = splat(static_cast<std::uint32_t>(key.stream >> 32));
  }
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < philox::rounds; ++round) {
    TESSERA_UNROLL for (std::size_t k = 0; k < blocks; ++k) {
      U a_high, a_low, b_high, b_low;
      multiply(c0[k], philox::multiplier[0], a_high, a_low);
      multiply(c2[k], philox::multiplier[1], b_high, b_low);
      c0[k] = hn::Xor(hn::Xor(b_high, c1[k]), splat(k0));
      c1[k] = b_low;
      c2[k] = hn::Xor(hn::Xor(a_high, c3[k]), splat(k1));
      c3[k] = a_low;
    }
    k0 += philox::weyl[0];
    k1 += philox::weyl[1];
  }
  TESSERA_UNROLL for (std::size_t k = 0; k < blocks; ++k) {
    hn::StoreU(c0[k], words, noise + k * lanes);
    hn::StoreU(c1[k], words, noise + 16 + k * lanes);
    hn::StoreU(c2[k], words, noise + 32 + k * lanes);
    hn::StoreU(c3[k], words, noise + 48 + k * lanes);
  }
}

TESSERA_INLINE U noise_at(const std::uint32_t* noise, std::size_t i) {
  return i < noise_words ? hn::And(hn::LoadU(words, noise + i), splat<std::uint32_t>(0xffff))
                         : hn::ShiftRight<16>(hn::LoadU(words, noise + i - noise_words));
}

TESSERA_INLINE void store_stochastic(std::uint16_t* to, F value, U noise) {
  store_upper_half(to, bits_or_nan(value, as_bits(value) + noise));
}

// ---- groups ----

// Pointers that advance together.
template <class G, class P>
struct Streams {
  const G* grad;
  float* a;  // first state
  float* b;  // second state
  float* master;
  P* param;
  TESSERA_INLINE void advance(Streams& s, std::size_t n) {
    s.grad += n;
    if (s.a != nullptr) s.a += n;
    if (s.b != nullptr) s.b += n;
    if (s.master != nullptr) s.master += n;
    s.param += n;
  }
};

// Loop over groups. Rule is a formula of rules_impl.h.
template <class Rule, class G, class P, bool has_master>
struct Loop {
  static constexpr bool stochastic = !has_master && std::is_same_v<P, std::uint16_t>;
  using S = Streams<G, P>;

  // See [Note: groups].
  __attribute__((noinline)) static void whole(const Rule& rule, S s, std::size_t groups,
                                              const NoiseKey& key, std::uint64_t number) {
    const Rule r = rule;
    for (std::size_t g = 0; g < groups; ++g) {
      std::uint32_t noise[stochastic ? noise_words : 1];
      if constexpr (stochastic) make_noise(key, static_cast<std::uint32_t>(number + g), noise);
      // Several vectors together, as in each_vector.
      for (std::size_t i = 0; i < group; i += unroll * lanes) {
        F a[unroll], b[unroll], value[unroll], grad[unroll];
        TESSERA_UNROLL for (std::size_t k = 0; k < unroll; ++k) {
          const std::size_t at = i + k * lanes;
          a[k] = b[k] = zero();
          if constexpr (Rule::states > 0) a[k] = load(s.a + at);
          if constexpr (Rule::states > 1) b[k] = load(s.b + at);
          if constexpr (has_master) {
            value[k] = load(s.master + at);
          } else {
            value[k] = load(s.param + at);
          }
          grad[k] = load(s.grad + at);
        }
        TESSERA_UNROLL for (std::size_t k = 0; k < unroll; ++k) {
          value[k] = r.update(grad[k], value[k], a[k], b[k]);
        }
        TESSERA_UNROLL for (std::size_t k = 0; k < unroll; ++k) {
          const std::size_t at = i + k * lanes;
          if constexpr (Rule::states > 0) store(s.a + at, a[k]);
          if constexpr (Rule::states > 1) store(s.b + at, b[k]);
          if constexpr (has_master) store(s.master + at, value[k]);
          if constexpr (stochastic) {
            store_stochastic(s.param + at, value[k], noise_at(noise, at));
          } else {
            store(s.param + at, value[k]);
          }
        }
      }
      S::advance(s, group);
    }
  }

  // Processes elements [skip, skip + n) of group `number`, with n < group.
  static void part(const Rule& rule, const S& s, std::size_t skip, std::size_t n,
                   const NoiseKey& key, std::uint64_t number) {
    G grad[group] = {};
    float a[group] = {}, b[group] = {}, master[group] = {};
    P param[group] = {};
    std::memcpy(grad + skip, s.grad, n * sizeof(G));
    if (Rule::states > 0) std::memcpy(a + skip, s.a, n * sizeof(float));
    if (Rule::states > 1) std::memcpy(b + skip, s.b, n * sizeof(float));
    if (has_master) std::memcpy(master + skip, s.master, n * sizeof(float));
    std::memcpy(param + skip, s.param, n * sizeof(P));
    whole(rule, {grad, a, b, master, param}, 1, key, number);
    if (Rule::states > 0) std::memcpy(s.a, a + skip, n * sizeof(float));
    if (Rule::states > 1) std::memcpy(s.b, b + skip, n * sizeof(float));
    if (has_master) std::memcpy(s.master, master + skip, n * sizeof(float));
    std::memcpy(s.param, param + skip, n * sizeof(P));
  }

  static void run(const Rule& rule, S s, std::size_t n, const NoiseKey& key, std::uint64_t begin) {
    std::uint64_t number = begin / group;
    if (const std::size_t skip = begin % group; skip != 0 && n > 0) {
      const std::size_t head = n < group - skip ? n : group - skip;
      part(rule, s, skip, head, key, number++);
      S::advance(s, head);
      n -= head;
    }
    const std::size_t groups = n / group;
    if (groups > 0) whole(rule, s, groups, key, number);
    S::advance(s, groups * group);
    if (n % group != 0) part(rule, s, 0, n % group, key, number + groups);
  }
};

template <class Rule>
void run(const Rule& rule, const ParamShard& shard, std::int64_t step, float* a, float* b) {
  const NoiseKey key{shard.seed, shard.stream, static_cast<std::uint32_t>(step)};
  with_type(shard.grad_type, [&](auto* g) {
    with_type(shard.param_type, [&](auto* p) {
      using G = std::remove_pointer_t<decltype(g)>;
      using P = std::remove_pointer_t<decltype(p)>;
      const Streams<G, P> s{static_cast<const G*>(shard.grad), a, b, shard.master,
                            static_cast<P*>(shard.param)};
      // Only stochastic rounding depends on group boundaries; without it the shard starts a whole
      // group.
      const std::uint64_t begin =
          shard.master == nullptr && shard.param_type == Type::bf16 ? shard.begin : 0;
      if (shard.master != nullptr) {
        Loop<Rule, G, P, true>::run(rule, s, shard.count, key, begin);
      } else {
        Loop<Rule, G, P, false>::run(rule, s, shard.count, key, begin);
      }
    });
  });
}

// ---- rules ----

// Rule that returns the gradient as the new value.
struct RoundRule {
  static constexpr int states = 0;
  HWY_INLINE F update(F g, F, F&, F&) const { return g; }
};

// UpdateKernel for rule R; see sets.h.
template <class R>
void update(const void* rule, const rules::Step& step, const ParamShard& shard, float* a,
            float* b) {
  const R& settings = *static_cast<const R*>(rule);
  if constexpr (std::is_same_v<R, rules::SGD>) {
    if (settings.momentum == 0) {
      run(SgdFormula<false, false>(settings, step), shard, step.count, nullptr, nullptr);
    } else if (settings.nesterov) {
      run(SgdFormula<true, true>(settings, step), shard, step.count, a, nullptr);
    } else {
      run(SgdFormula<true, false>(settings, step), shard, step.count, a, nullptr);
    }
  } else {
    run(Formula<R>(settings, step), shard, step.count, a, b);
  }
}

template <class Variant>
struct UpdateTable;
template <class... R>
struct UpdateTable<std::variant<R...>> {
  static constexpr UpdateKernels kernels = {{update<R>...}};
};

void round_to_bf16_stochastic(const float* from, std::uint16_t* to, std::size_t count,
                              std::uint64_t begin, std::uint64_t stream, std::uint64_t seed,
                              std::int64_t step) {
  Loop<RoundRule, float, std::uint16_t, false>::run(
      RoundRule{}, {from, nullptr, nullptr, nullptr, to}, count,
      NoiseKey{seed, stream, static_cast<std::uint32_t>(step)}, begin);
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
