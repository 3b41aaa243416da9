// Compares every kernel with its reference at the extremes of fp32, for all lengths up to three
// vectors: lanes beyond the end of a row must not affect its result, whatever the row contains.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/kernels/arrays.h"

namespace tessera::kernels {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::size_t longest = 48;  // three vectors of AVX-512

// Normally distributed values of a row, with mean `middle` and deviation `spread`.
struct Values {
  float middle, spread;
};
constexpr Values extreme_values[] = {{0, 1},      {300, 0},   {-300, 0},     {300, 30},
                                     {-300, 30},  {0, 300},   {-100, 1e-3f}, {0, 1e-40f},
                                     {1e-40f, 0}, {0, 1e-20f}};

Array values_of(Type type, std::size_t n, const Values& values, std::mt19937& random) {
  Array array(type, n);
  std::normal_distribution<float> normal(0, 1);
  for (std::size_t i = 0; i < n; ++i) array.set(i, values.middle + values.spread * normal(random));
  return array;
}

// Calls f(set, type, n, values, random) for all sets, types, lengths and values.
template <class Body>
void each_extreme(Body&& f) {
  std::mt19937 random(6);
  for (const KernelSet* set : usable_sets()) {
    for (const Type type : both_types) {
      for (std::size_t n = 1; n <= longest; ++n) {
        for (const Values& values : extreme_values) {
          SCOPED_TRACE(testing::Message() << set->name << " type " << int(type) << " length " << n
                                          << " values " << values.middle << " ± " << values.spread);
          f(*set, type, n, values, random);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

void expect_softmax_close(const KernelSet& set, const CausalRows& in, const Array& scores,
                          const Array& gradient) {
  const std::size_t n = scores.size();
  Array p = scores, wanted = scores, lse(Type::f32, in.rows), wanted_lse(Type::f32, in.rows);
  set.softmax_causal_forward(in, p.data(), lse.as<float>());
  reference::softmax_causal_forward(in, wanted.data(), wanted_lse.as<float>());
  expect_close(p, wanted, 4e-6, 1e-9, "p");
  expect_close(lse, wanted_lse, 2e-7, 1, "lse");
  Array q = scores, wanted_q = scores, d = gradient, wanted_d = gradient;
  set.softmax_causal_backward(in, q.data(), d.data(), wanted_lse.as<float>());
  reference::softmax_causal_backward(in, wanted_q.data(), wanted_d.data(), wanted_lse.as<float>());
  expect_close(q, wanted_q, 4e-6, 1e-9, "p again");
  double unit = 0;
  for (std::size_t i = 0; i < n; ++i) unit = std::max(unit, std::abs(double{gradient[i]}));
  expect_close(d, wanted_d, in.type == Type::f32 ? 4e-6 : 0x1p-7, unit * in.scale, "ds");
  // As if these columns were some of a row with another sum.
  std::vector<float> delta(in.rows);
  for (std::size_t r = 0; r < in.rows; ++r) {
    delta[r] = static_cast<float>(unit) * (r % 2 == 0 ? -0.5f : 0.75f);
  }
  CausalRows part = in;
  part.delta = delta.data();
  q = wanted_q = scores, d = wanted_d = gradient;
  set.softmax_causal_backward(part, q.data(), d.data(), wanted_lse.as<float>());
  reference::softmax_causal_backward(part, wanted_q.data(), wanted_d.data(),
                                     wanted_lse.as<float>());
  expect_close(d, wanted_d, in.type == Type::f32 ? 4e-6 : 0x1p-7, unit * in.scale,
               "ds with a given delta");
}

// A row whose columns are all skipped must not affect the others, whatever its scores are.
TEST(Extremes, SoftmaxOfARowWithoutColumnsIsZero) {
  each_extreme([](const KernelSet& set, Type type, std::size_t n, const Values& values,
                  std::mt19937& random) {
    const std::int32_t skipped[] = {static_cast<std::int32_t>(n), 0};
    CausalRows in{type, 2, n, n, 1.0f};
    in.skipped = skipped;
    const Array scores = values_of(type, 2 * n, values, random);
    const Array gradient = values_of(type, 2 * n, {0, 1}, random);
    Array p = scores, wanted = scores, lse(Type::f32, 2), wanted_lse(Type::f32, 2);
    set.softmax_causal_forward(in, p.data(), lse.as<float>());
    reference::softmax_causal_forward(in, wanted.data(), wanted_lse.as<float>());
    ASSERT_EQ(lse[0], -infinity);
    ASSERT_EQ(wanted_lse[0], -infinity);
    expect_close(p, wanted, 4e-6, 1e-9, "p");
    for (const float row_lse : {-infinity, 3.0f}) {  // the row may see columns elsewhere
      Array q = scores, d = gradient, wanted_q = q, wanted_d = d;
      wanted_lse.set(0, row_lse);
      set.softmax_causal_backward(in, q.data(), d.data(), wanted_lse.as<float>());
      reference::softmax_causal_backward(in, wanted_q.data(), wanted_d.data(),
                                         wanted_lse.as<float>());
      for (std::size_t c = 0; c < n; ++c) {
        ASSERT_EQ(p[c], 0);
        ASSERT_EQ(q[c], 0);
        ASSERT_EQ(d[c], 0);
      }
      expect_close(q, wanted_q, 4e-6, 1e-9, "p again");
      expect_close(d, wanted_d, type == Type::f32 ? 4e-6 : 0x1p-7, 4, "ds");
    }
  });
}

TEST(Extremes, SoftmaxMatchesTheReference) {
  each_extreme([](const KernelSet& set, Type type, std::size_t n, const Values& values,
                  std::mt19937& random) {
    for (const float scale : {1.0f, 0.125f, 4.0f}) {
      CausalRows in{type, 2, n, n, scale};
      const Array gradient = values_of(type, 2 * n, {0, 1}, random);
      Array scores = values_of(type, 2 * n, values, random);
      expect_softmax_close(set, in, scores, gradient);
      // Masks some scores; each row keeps at least one.
      for (std::size_t i = 0; i < 2 * n; ++i) {
        if (i % n != 0 && random() % 3 == 0) scores.set(i, -infinity);
      }
      expect_softmax_close(set, in, scores, gradient);
      in.first = (n + 1) / 2;
      expect_softmax_close(set, in, scores, values_of(type, 2 * n, {0, 300}, random));
    }
  });
}

TEST(Extremes, CrossEntropyMatchesTheReference) {
  each_extreme([](const KernelSet& set, Type type, std::size_t n, const Values& values,
                  std::mt19937& random) {
    for (const bool masked : {false, true}) {
      const std::int64_t target = static_cast<std::int64_t>(random() % n);
      Array logits = values_of(type, n, values, random);
      for (std::size_t i = 0; masked && i < n; ++i) {
        if (i != static_cast<std::size_t>(target) && random() % 3 == 0) logits.set(i, -infinity);
      }
      Array wanted = logits, loss(Type::f32, 1), wanted_loss(Type::f32, 1);
      set.cross_entropy_rows(logits.data(), type, 1, n, &target, loss.as<float>());
      reference::cross_entropy_rows(wanted.data(), type, 1, n, &target, wanted_loss.as<float>());
      const double unit = 4 + std::abs(values.middle) + 4 * values.spread;
      expect_close(loss, wanted_loss, 4e-7, unit, "loss");
      expect_close(logits, wanted, 4e-7, unit, "gradient");
    }
  });
}

void expect_layer_norm_close(const KernelSet& set, const Array& x, std::size_t n,
                             std::mt19937& random) {
  Array weight = values_of(Type::f32, n, {0, 1}, random), bias = weight;
  const LayerNorm in{.type = x.type(),
                     .rows = 1,
                     .cols = n,
                     .x = x.data(),
                     .weight = weight.as<float>(),
                     .bias = bias.as<float>()};
  Array y(x.type(), n), mean(Type::f32, 1), rstd(Type::f32, 1);
  Array y2(x.type(), n), mean2(Type::f32, 1), rstd2(Type::f32, 1);
  set.layer_norm_forward(in, y.data(), nullptr, mean.as<float>(), rstd.as<float>());
  reference::layer_norm_forward(in, y2.data(), nullptr, mean2.as<float>(), rstd2.as<float>());
  double most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::abs(double{x[i]}));
  // Rounding the mean shifts the row by this much, in units of its deviation.
  const double shift = std::min(1.0, 1e-6 * most * rstd2[0]);
  expect_close(mean, mean2, 1e-6, most, "mean");
  expect_close(rstd, rstd2, 1e-5 + shift, 0, "rstd");
  expect_close(y, y2, 1e-5 + shift, 4, "y");

  const Array dy = values_of(x.type(), n, {0, 1}, random);
  Array dx(x.type(), n), dw(Type::f32, n), db(Type::f32, n);
  for (std::size_t i = 0; i < n; ++i) dw.set(i, 0), db.set(i, 0);
  Array dx2 = dx, dw2 = dw, db2 = db;
  set.layer_norm_backward(in, mean2.as<float>(), rstd2.as<float>(), dy.data(), nullptr, dx.data(),
                          dw.as<float>(), db.as<float>());
  reference::layer_norm_backward(in, mean2.as<float>(), rstd2.as<float>(), dy.data(), nullptr,
                                 dx2.data(), dw2.as<float>(), db2.as<float>());
  expect_close(dx, dx2, 1e-5, 8.0 * rstd2[0], "dx");
  expect_close(dw, dw2, 1e-5, 8, "dweight");
  expect_close(db, db2, 1e-5, 8, "dbias");
}

TEST(Extremes, LayerNormMatchesTheReference) {
  each_extreme([](const KernelSet& set, Type type, std::size_t n, const Values& values,
                  std::mt19937& random) {
    expect_layer_norm_close(set, values_of(type, n, values, random), n, random);
    // The sums are exact; the mean times 1 / sqrt(eps) is infinite.
    expect_layer_norm_close(set, values_of(type, n, {0x1p122f, 0}, random), n, random);
  });
}

TEST(Extremes, GeluAndSiluMatchTheReference) {
  each_extreme([](const KernelSet& set, Type type, std::size_t n, const Values& values,
                  std::mt19937& random) {
    Array x = values_of(type, n, values, random);
    if (values.middle == 300) x.set(n - 1, infinity);
    const Array dy = values_of(type, n, {0, 1}, random);
    Array bias = values_of(Type::f32, n, {0, 1}, random);
    Array y(type, n), y2(type, n), dx(type, n), dx2(type, n), db = bias, db2 = bias;
    const Gelu in{type, 1, n, x.data(), bias.as<float>()};
    set.gelu_forward(in, y.data());
    reference::gelu_forward(in, y2.data());
    if (values.middle == 300) {
      EXPECT_EQ(y[n - 1], infinity);
      y.set(n - 1, 0), y2.set(n - 1, 0);
      x.set(n - 1, 300);  // the derivative of the reference is NaN at infinity
    }
    expect_close(y, y2, 2e-6, 0.01, "gelu");
    set.gelu_backward(in, dy.data(), dx.data(), db.as<float>());
    reference::gelu_backward(in, dy.data(), dx2.data(), db2.as<float>());
    expect_close(dx, dx2, 2e-6, 4, "dx");
    expect_close(db, db2, 2e-6, 4, "dbias");

    Array gate = values_of(Type::f32, n, values, random), capped = gate;
    Array silu = gate, wanted = gate;
    set.silu(silu.as<float>(), n);
    reference::silu(wanted.as<float>(), n);
    expect_close(silu, wanted, 4e-6, 0.01, "silu");
    wanted = gate;
    set.soft_cap(capped.as<float>(), 30, n);
    reference::soft_cap(wanted.as<float>(), 30, n);
    expect_close(capped, wanted, 1e-6, 30, "soft cap");
  });
}

TEST(Extremes, RmsNormAndSumOfSquaresMatchTheReference) {
  each_extreme([](const KernelSet& set, Type type, std::size_t n, const Values& values,
                  std::mt19937& random) {
    Array x = values_of(Type::f32, n, values, random), w = values_of(Type::f32, n, {0, 1}, random);
    Array y(Type::f32, n), wanted(Type::f32, n);
    set.rms_norm_rows(x.as<float>(), w.as<float>(), 1e-5f, 1, n, y.as<float>());
    reference::rms_norm_rows(x.as<float>(), w.as<float>(), 1e-5f, 1, n, wanted.as<float>());
    expect_close(y, wanted, 4e-6, 1e-6, "rms norm");
    const Array squares = values_of(type, n, values, random);
    EXPECT_EQ(set.sum_of_squares(squares.data(), type, n),
              reference::sum_of_squares(squares.data(), type, n));
  });
}

// Queries and keys of any sign, including products far below 0.
TEST(Extremes, CachedAttentionMatchesTheReference) {
  std::mt19937 random(8);
  for (const KernelSet* set : usable_sets()) {
    for (const Type type : both_types) {
      for (std::size_t n = 1; n <= longest; ++n) {
        for (const float middle : {-1e16f, -30.0f, 0.0f, 30.0f, 1e16f}) {
          SCOPED_TRACE(testing::Message() << set->name << " type " << int(type) << " length " << n
                                          << " query " << middle);
          const bool huge = std::abs(middle) > 1e10f;  // then all scores are equal
          Array q = values_of(Type::f32, 1, {middle, 0}, random);
          const Array k = values_of(type, n, {huge ? 0x1p50f : 10, huge ? 0.0f : 1}, random),
                      v = values_of(type, n, {0, 1}, random);
          const CachedAttention in{type, 1, 1, n, q.as<float>(), k.data(), v.data(), 1};
          Array scores(Type::f32, n), out(Type::f32, 1), wanted(Type::f32, 1);
          set->cached_attention(in, scores.as<float>(), out.as<float>());
          reference::cached_attention(in, nullptr, wanted.as<float>());
          expect_close(out, wanted, 2e-4, 1, "out");  // scores of 300 have few digits left
          if (testing::Test::HasFatalFailure()) return;
          // Matrix product of the same length.
          Array x = values_of(Type::f32, 9 * n, {middle, 1}, random);
          const FewRows product{type, 9, n, 1, x.as<float>(), k.data(), nullptr, false};
          Array y(Type::f32, 9), wanted_y(Type::f32, 9);
          set->few_rows_linear(product, y.as<float>(), 0, 1);
          reference::few_rows_linear(product, wanted_y.as<float>(), 0, 1);
          expect_close(y, wanted_y, 2e-6, 10.0 * static_cast<double>(n), "product");
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
