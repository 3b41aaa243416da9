#include "tessera/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  ParamSlice slice(std::size_t begin, std::size_t count, std::uint64_t offset = 0) {
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

using Step = std::function<void(State&, const ParamSlice&, std::size_t begin)>;

// Against the reference over many sizes, and slice by slice against the whole, bit for bit.
void check(const Step& fast, const Step& slow) {
  std::mt19937 random(3);
  for (const Storage& storage : storages) {
    for (const std::size_t n : odd_sizes) {
      SCOPED_TRACE(testing::Message() << "n " << n << " grad " << int(storage.grad) << " param "
                                      << int(storage.param) << " master " << storage.master);
      State whole(storage, n, random);
      State wanted = whole, sliced = whole;
      fast(whole, whole.slice(0, n), 0);
      slow(wanted, wanted.slice(0, n), 0);
      expect_close(whole, wanted);
      for (std::size_t at = 0; at < n;) {
        const std::size_t count = std::min<std::size_t>(n - at, 1 + random() % 150);
        fast(sliced, sliced.slice(at, count), at);
        at += count;
      }
      expect_same(sliced, whole);
    }
  }
}

TEST(AdamW, IsTheReferenceAndSlicesHaveTheBitsOfTheWhole) {
  for (const KernelSet* set : usable_sets()) {
    SCOPED_TRACE(set->name);
    for (const std::int64_t step : {1, 2, 1000}) {
      const AdamW how{.lr = 0.01, .weight_decay = 0.1, .step = step, .grad_scale = 0.37};
      check([&](State& s, const ParamSlice& slice,
                std::size_t at) { set->adamw(how, slice, s.first(at), s.second(at)); },
            [&](State& s, const ParamSlice& slice, std::size_t at) {
              reference::adamw(how, slice, s.first(at), s.second(at));
            });
    }
  }
}

TEST(Sgd, IsTheReferenceAndSlicesHaveTheBitsOfTheWhole) {
  for (const KernelSet* set : usable_sets()) {
    SCOPED_TRACE(set->name);
    for (const Sgd& how : {Sgd{.lr = 0.1}, Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                           Sgd{.lr = 0.1,
                           .momentum = 0.9,
                           .weight_decay = 0.01,
                           .nesterov = true,
                           .step = 5,
                           .grad_scale = 2}}) {
      check([&](State& s, const ParamSlice& slice,
                std::size_t at) { set->sgd(how, slice, s.first(at)); },
            [&](State& s, const ParamSlice& slice, std::size_t at) {
              reference::sgd(how, slice, s.first(at));
            });
    }
  }
}

TEST(Sgd, WithoutMomentumNeedsNoVelocity) {
  float p = 1, g = 2;
  sgd({.lr = 0.25}, {.param = &p, .grad = &g, .count = 1}, nullptr);
  EXPECT_EQ(p, 0.5f);
}

TEST(StochasticRounding, HasTheBitsOfTheReference) {
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

TEST(StochasticRounding, IsRightOnAverage) {
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

TEST(StochasticRounding, StepsAndStreamsDiffer) {
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
