#include "tessera/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/philox.h"
#include "tests/kernels/arrays.h"

namespace tessera::kernels {
namespace {

struct Storage {
  Type grad, param;
  bool master;
};
constexpr Storage storages[] = {
    {Type::f32, Type::f32, false},   {Type::bf16, Type::f32, false}, {Type::bf16, Type::bf16, true},
    {Type::f32, Type::bf16, true},   {Type::f32, Type::f32, true},   {Type::f32, Type::bf16, false},
    {Type::bf16, Type::bf16, false},
};

// A parameter of n elements with its state.
struct State {
  Storage how;
  Array param, master, grad, a, b;

  State(const Storage& storage, std::size_t n, std::mt19937& random)
      : how(storage),
        param(random_array(storage.param, n, random)),
        master(Type::f32, n),
        grad(random_array(storage.grad, n, random)),
        a(random_array(Type::f32, n, random, 0.1f)),
        b(random_array(Type::f32, n, random, 0.1f)) {
    for (std::size_t i = 0; i < n; ++i) {
      master.set(i, param[i]);
      b.set(i, b[i] * b[i]);
    }
  }
  ParamShard shard(std::size_t begin, std::size_t count, std::uint64_t offset = 0) {
    return {.param = param.at(begin),
            .param_type = how.param,
            .master = how.master ? static_cast<float*>(master.at(begin)) : nullptr,
            .grad = grad.at(begin),
            .grad_type = how.grad,
            .count = count,
            .begin = offset + begin,
            .stream = stream_of("blocks.0.fc.weight"),
            .seed = 11};
  }
  float* first(std::size_t begin) { return static_cast<float*>(a.at(begin)); }
  float* second(std::size_t begin) { return static_cast<float*>(b.at(begin)); }
};

void expect_same(const State& got, const State& wanted) {
  EXPECT_TRUE(got.param == wanted.param);
  EXPECT_TRUE(got.master == wanted.master);
  EXPECT_TRUE(got.grad == wanted.grad);
  EXPECT_TRUE(got.a == wanted.a);
  EXPECT_TRUE(got.b == wanted.b);
}

void expect_close(const State& got, const State& wanted) {
  expect_close(got.param, wanted.param, 4e-6, 1, "param");
  expect_close(got.master, wanted.master, 4e-6, got.how.master ? 1.0 : 0.0, "master");
  expect_close(got.a, wanted.a, 1e-6, 1, "first state");
  expect_close(got.b, wanted.b, 1e-6, 1, "second state");
}

// Updates one element (scaled gradient, value and states) in double precision. Returns the new
// value.
using Slow = std::function<double(double g, double p, float& a, float& b)>;

void run_slowly(const Slow& slow, const rules::Step& step, State& s, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const bool noisy = !s.how.master && s.how.param == Type::bf16;
    float &a = s.first(i)[0], &b = s.second(i)[0];
    const double p = s.how.master ? s.master[i] : s.param[i];
    const auto value = static_cast<float>(slow(step.grad_scale * s.grad[i], p, a, b));
    if (s.how.master) s.master.set(i, value);
    if (noisy) {
      const ParamShard shard = s.shard(i, 1);
      static_cast<std::uint16_t*>(shard.param)[0] =
          reference::to_bf16_stochastic(value, shard.begin, shard.stream, shard.seed, step.count);
    } else {
      s.param.set(i, value);
    }
  }
}

// Compares with the formula over many sizes, and shards with the whole bitwise, on every
// instruction set.
void check(const rules::Rule& rule, const rules::Step& step, const Slow& slow) {
  const void* how = std::visit([](const auto& r) -> const void* { return &r; }, rule);
  for (const KernelSet* set : usable_sets()) {
    const auto fast = [&](State& s, std::size_t begin, std::size_t count) {
      set->update.of[rule.index()](how, step, s.shard(begin, count), s.first(begin),
                                   s.second(begin));
    };
    std::mt19937 random(3);
    for (const Storage& storage : storages) {
      for (const std::size_t n : odd_sizes) {
        SCOPED_TRACE(testing::Message()
                     << set->name << " n " << n << " grad " << int(storage.grad) << " param "
                     << int(storage.param) << " master " << storage.master);
        State whole(storage, n, random);
        State wanted = whole, sharded = whole;
        fast(whole, 0, n);
        run_slowly(slow, step, wanted, n);
        expect_close(whole, wanted);
        for (std::size_t at = 0; at < n;) {
          const std::size_t count = std::min<std::size_t>(n - at, 1 + random() % 150);
          fast(sharded, at, count);
          at += count;
        }
        expect_same(sharded, whole);
      }
      // Extreme gradients, and all lengths up to three vectors.
      for (std::size_t n = 1; n <= 48; ++n) {
        SCOPED_TRACE(testing::Message() << set->name << " extreme n " << n);
        State whole(storage, n, random);
        for (std::size_t i = 0; i < n; ++i) {
          constexpr float edges[] = {300, -300, 1e-40f, -1e-40f, 0, 1e-20f, 1e15f, -1e15f};
          whole.grad.set(i, edges[random() % std::size(edges)]);
        }
        State wanted = whole;
        fast(whole, 0, n);
        run_slowly(slow, step, wanted, n);
        expect_close(whole, wanted);
      }
    }
  }
}

float blend(double keep, float x, double y) {
  return static_cast<float>(keep * x + (1 - keep) * y);
}

TEST(AdamW, MatchesItsFormulaAndShardsMatchTheWholeBitwise) {
  for (const std::int64_t count : {1, 2, 1000}) {
    const rules::AdamW how;
    const rules::Step step{.lr = 0.01, .weight_decay = 0.1, .count = count, .grad_scale = 0.37};
    const double bias1 = 1 - std::pow(how.beta1, static_cast<double>(count));
    const double bias2 = 1 - std::pow(how.beta2, static_cast<double>(count));
    check(how, step, [&](double g, double p, float& m, float& v) {
      m = blend(how.beta1, m, g);
      v = blend(how.beta2, v, g * g);
      p *= 1 - step.lr * step.weight_decay;
      return p - step.lr / bias1 * m / (std::sqrt(v) / std::sqrt(bias2) + how.eps);
    });
  }
}

TEST(Sgd, MatchesItsFormulaAndShardsMatchTheWholeBitwise) {
  for (const rules::SGD& how :
       {rules::SGD{}, rules::SGD{.momentum = 0.9}, rules::SGD{.momentum = 0.9, .nesterov = true}}) {
    for (const double decay : {0.0, 0.01}) {
      const rules::Step step{.lr = 0.1, .weight_decay = decay, .count = 5, .grad_scale = 2};
      check(how, step, [&](double g, double p, float& u, float&) {
        g += decay * p;
        if (how.momentum == 0) return p - step.lr * g;
        u = static_cast<float>(how.momentum * u + g);
        return p - step.lr * (how.nesterov ? g + how.momentum * u : u);
      });
    }
  }
}

TEST(Sgd, NeedsNoVelocityWithoutMomentum) {
  float p = 1, g = 2;
  update(rules::SGD{}, {.lr = 0.25}, {.param = &p, .grad = &g, .count = 1});
  EXPECT_EQ(p, 0.5f);
}

TEST(Lion, MatchesItsFormulaAndShardsMatchTheWholeBitwise) {
  const rules::Lion how;
  const rules::Step step{.lr = 0.01, .weight_decay = 0.3, .count = 3, .grad_scale = 0.5};
  check(how, step, [&](double g, double p, float& m, float&) {
    const float direction = blend(how.beta1, m, g);
    m = blend(how.beta2, m, g);
    const int sign = (direction > 0) - (direction < 0);
    return p * (1 - step.lr * step.weight_decay) - step.lr * sign;
  });
}

TEST(Lion, DoesNotMoveWithoutGradient) {
  float p[] = {1, 1, 1}, g[] = {0, 0x1p-149f, -0x1p-120f}, m[3] = {};
  update(rules::Lion{.beta1 = 0}, {.lr = 0.25}, {.param = p, .grad = g, .count = 3}, m);
  EXPECT_EQ(p[0], 1.0f);
  EXPECT_EQ(p[1], 0.75f);
  EXPECT_EQ(p[2], 1.25f);
}

TEST(Matrices, MomentumAndDescentMatchTheirFormulas) {
  for (const bool nesterov : {false, true}) {
    const rules::Momentum how{.momentum = 0.9, .nesterov = nesterov};
    check(how, {.grad_scale = 0.7}, [&](double g, double, float& m, float&) -> double {
      m = blend(how.momentum, m, g);
      return nesterov ? how.momentum * m + (1 - how.momentum) * g : m;
    });
  }
  const rules::Step step{.lr = 0.1, .weight_decay = 0.2};
  check(rules::Descent{.scale = 3}, step, [&](double g, double p, float&, float&) {
    return p * (1 - step.lr * step.weight_decay) - 3 * step.lr * g;
  });
}

TEST(StochasticRounding, MatchesTheReferenceBitwise) {
  std::mt19937 random(4);
  const std::uint64_t stream = stream_of("x");
  for (const KernelSet* set : usable_sets()) {
    for (const std::uint64_t begin : {0ull, 1ull, 63ull, 64ull, 127ull, 1000ull, 1ull << 33}) {
      for (const std::size_t n : odd_sizes) {
        std::vector<float> from(n);
        for (float& x : from) {
          const auto bits = static_cast<std::uint32_t>(random());
          std::memcpy(&x, &bits, 4);
        }
        std::vector<std::uint16_t> to(n);
        set->round_to_bf16_stochastic(from.data(), to.data(), n, begin, stream, 5, 77);
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(to[i], reference::to_bf16_stochastic(from[i], begin + i, stream, 5, 77))
              << set->name << " " << begin << "+" << i;
        }
      }
    }
  }
}

TEST(StochasticRounding, IsUnbiased) {
  constexpr std::size_t n = 100'000;
  const float low = 1.0f, high = 1.0f + 0x1p-7f;
  for (const float share : {0.0f, 0.1f, 0.5f, 0.9f}) {
    const std::vector<float> from(n, low + share * (high - low));
    std::vector<std::uint16_t> to(n);
    round_to_bf16_stochastic(from.data(), to.data(), n, 0, stream_of("y"), 1, 1);
    std::size_t up = 0;
    for (const std::uint16_t x : to) {
      ASSERT_TRUE(from_bf16(x) == low || from_bf16(x) == high);
      up += from_bf16(x) == high ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(up) / n, share, share == 0 ? 0 : 0.006);
  }
}

TEST(StochasticRounding, NoiseDiffersByStepAndStream) {
  constexpr std::size_t n = 1000;
  const std::vector<float> from(n, 1.0f + 0x1p-8f);
  const auto round = [&](std::uint64_t stream, std::uint64_t seed, std::int64_t step) {
    std::vector<std::uint16_t> to(n);
    round_to_bf16_stochastic(from.data(), to.data(), n, 0, stream, seed, step);
    return to;
  };
  const auto first = round(1, 1, 1);
  EXPECT_EQ(round(1, 1, 1), first);
  for (const auto& other : {round(2, 1, 1), round(1, 2, 1), round(1, 1, 2)}) {
    std::size_t same = 0;
    for (std::size_t i = 0; i < n; ++i) same += first[i] == other[i] ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(same), 500.0, 80.0);
  }
}

}  // namespace
}  // namespace tessera::kernels
