#include "tessera/kernels/layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/kernels/arrays.h"

namespace tessera::kernels {
namespace {

// Calls f(set, type, rows, cols, random) for all sets, types and shapes.
template <class Body>
void each_case(Body&& f) {
  std::mt19937 random(5);
  for (const KernelSet* set : usable_sets()) {
    for (const Type type : both_types) {
      for (const std::size_t rows : {0, 1, 3}) {
        for (const std::size_t cols : odd_sizes) {
          SCOPED_TRACE(testing::Message() << set->name << " type " << int(type) << " rows " << rows
                                          << " cols " << cols);
          f(*set, type, rows, cols, random);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Gelu, MatchesTheReference) {
  each_case([](const KernelSet& set, Type type, std::size_t rows, std::size_t cols,
               std::mt19937& random) {
    const std::size_t n = rows * cols;
    const Array x = random_array(type, n, random, 2), dy = random_array(type, n, random);
    Array bias = random_array(Type::f32, cols, random);
    for (const bool with_bias : {false, true}) {
      const Gelu in{type, rows, cols, x.data(), with_bias ? bias.as<float>() : nullptr};
      Array y(type, n), wanted(type, n), dx = dy, wanted_dx(type, n);
      set.gelu_forward(in, y.data());
      reference::gelu_forward(in, wanted.data());
      expect_close(y, wanted, 1e-6, 0.01, "y");
      Array db = random_array(Type::f32, cols, random), wanted_db = db;
      set.gelu_backward(in, dx.data(), dx.data(), with_bias ? db.as<float>() : nullptr);
      reference::gelu_backward(in, dy.data(), wanted_dx.data(),
                               with_bias ? wanted_db.as<float>() : nullptr);
      expect_close(dx, wanted_dx, 2e-6, 1, "dx");
      expect_close(db, wanted_db, 4e-6, 1, "dbias");
    }
  });
}

TEST(Gelu, HandlesLargeAndSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const KernelSet* set : usable_sets()) {
    std::vector<float> x = {0,     -0.0f, 5,      -5,    12,     -12,      1e4f,
                            -1e4f, 1e20f, -1e20f, 3e38f, -3e38f, infinity, std::nanf("")};
    const std::size_t n = x.size();
    std::vector<float> y(n), dy(n, 1.0f), dx(n);
    const Gelu in{Type::f32, 1, n, x.data(), nullptr};
    set->gelu_forward(in, y.data());
    set->gelu_backward(in, dy.data(), dx.data(), nullptr);
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(dx[0], 0.5f);
    for (std::size_t i = 4; i + 2 < n; i += 2) {
      EXPECT_EQ(y[i], x[i]);
      EXPECT_NEAR(y[i + 1], 0, 1e-30);
      EXPECT_EQ(dx[i], 1);
      EXPECT_NEAR(dx[i + 1], 0, 1e-12);
    }
    EXPECT_EQ(y[n - 2], infinity);
    EXPECT_EQ(dx[n - 2], 1);
    EXPECT_NE(y[n - 1], y[n - 1]);
    EXPECT_NE(dx[n - 1], dx[n - 1]);
  }
}

TEST(LayerNorm, MatchesTheReference) {
  each_case([](const KernelSet& set, Type type, std::size_t rows, std::size_t cols,
               std::mt19937& random) {
    if (cols == 0) return;
    const std::size_t n = rows * cols;
    const Array x = random_array(type, n, random, 3), residual = random_array(type, n, random);
    Array weight = random_array(Type::f32, cols, random);
    Array bias = random_array(Type::f32, cols, random);
    for (const bool with_residual : {false, true}) {
      LayerNorm in{type,
                   rows,
                   cols,
                   x.data(),
                   with_residual ? residual.data() : nullptr,
                   weight.as<float>(),
                   bias.as<float>(),
                   1e-5f};
      Array y(type, n), sum(type, n), mean(Type::f32, rows), rstd(Type::f32, rows);
      Array y2(type, n), sum2(type, n), mean2(Type::f32, rows), rstd2(Type::f32, rows);
      set.layer_norm_forward(in, y.data(), sum.data(), mean.as<float>(), rstd.as<float>());
      reference::layer_norm_forward(in, y2.data(), sum2.data(), mean2.as<float>(),
                                    rstd2.as<float>());
      // A row of nearly equal elements loses precision, because rstd is large.
      double worst = 1;
      for (std::size_t r = 0; r < rows; ++r) worst = std::max(worst, double{rstd2[r]});
      expect_close(y, y2, 4e-6 * worst, 4, "y");
      EXPECT_TRUE(sum == sum2);
      expect_close(mean, mean2, 2e-6, 1, "mean");
      expect_close(rstd, rstd2, 4e-6 * worst, 0, "rstd");

      if (with_residual) in.x = sum2.data();
      const Array dy = random_array(type, n, random), dsum = random_array(type, n, random);
      Array dx = dy, dx2(type, n);
      Array dw = random_array(Type::f32, cols, random), db = random_array(Type::f32, cols, random);
      Array dw2 = dw, db2 = db;
      const void* past = with_residual ? dsum.data() : nullptr;
      set.layer_norm_backward(in, mean2.as<float>(), rstd2.as<float>(), dx.data(), past, dx.data(),
                              dw.as<float>(), db.as<float>());
      reference::layer_norm_backward(in, mean2.as<float>(), rstd2.as<float>(), dy.data(), past,
                                     dx2.data(), dw2.as<float>(), db2.as<float>());
      expect_close(dx, dx2, 4e-6, 4 * worst, "dx");
      expect_close(dw, dw2, 4e-6, 10, "dweight");
      expect_close(db, db2, 4e-6, 10, "dbias");
    }
  });
}

TEST(SoftmaxCausal, MatchesTheReference) {
  each_case([](const KernelSet& set, Type type, std::size_t rows, std::size_t cols,
               std::mt19937& random) {
    if (cols == 0) return;
    for (const std::size_t first : {std::size_t{1}, std::size_t{2}, (cols + 1) / 2, cols}) {
      std::vector<std::int32_t> skipped;  // used in every second case
      for (std::size_t r = 0; r < rows; ++r) {
        // Some rows see no column.
        skipped.push_back(static_cast<std::int32_t>(random() % (std::min(first + r, cols) + 1)));
      }
      CausalRows in{type, rows, cols, first, 0.125f};
      if (first % 2 == 0) in.skipped = skipped.data();
      const Array scores = random_array(type, rows * cols, random, 30);
      Array p = scores, wanted = scores, lse(Type::f32, rows), wanted_lse(Type::f32, rows);
      set.softmax_causal_forward(in, p.data(), lse.as<float>());
      reference::softmax_causal_forward(in, wanted.data(), wanted_lse.as<float>());
      expect_close(p, wanted, 4e-6, 1e-9, "p");
      for (std::size_t r = 0; r < rows; ++r) {
        if (in.skipped == nullptr || skipped[r] != static_cast<int>(std::min(first + r, cols))) {
          continue;
        }
        ASSERT_EQ(lse[r], -std::numeric_limits<float>::infinity());
        lse.set(r, 0), wanted_lse.set(r, 0);
      }
      expect_close(lse, wanted_lse, 1e-6, 1, "lse");
      Array q = scores, wanted_q = scores;
      Array d = random_array(type, rows * cols, random), wanted_d = d;
      set.softmax_causal_backward(in, q.data(), d.data(), wanted_lse.as<float>());
      reference::softmax_causal_backward(in, wanted_q.data(), wanted_d.data(),
                                         wanted_lse.as<float>());
      expect_close(q, wanted_q, 4e-6, 1e-9, "p again");
      // bf16 reads the rounded p back and subtracts.
      expect_close(d, wanted_d, type == Type::f32 ? 4e-6 : 4e-3, 0.25, "ds");
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < cols; ++c) {
          const bool before = in.skipped != nullptr && c < static_cast<std::size_t>(skipped[r]);
          if (!before && c < first + r) continue;
          ASSERT_EQ(p[r * cols + c], 0);
          ASSERT_EQ(d[r * cols + c], 0);
        }
      }
    }
  });
}

// The columns of a row in two parts: with the lse and the delta of the whole row, each part gets
// the same values as in the whole.
TEST(SoftmaxCausal, PartsMatchTheWholeWithItsLseAndDelta) {
  each_case([](const KernelSet& set, Type type, std::size_t rows, std::size_t cols,
               std::mt19937& random) {
    if (cols == 0) return;
    const Array scores = random_array(type, rows * cols, random, 30);
    const Array gradient = random_array(type, rows * cols, random);
    Array p = scores, d = gradient, forward = scores, lse(Type::f32, rows), delta(Type::f32, rows);
    const CausalRows whole{type, rows, cols, cols, 0.125f};
    reference::softmax_causal_forward(whole, forward.data(), lse.as<float>());
    reference::softmax_causal_backward(whole, p.data(), d.data(), lse.as<float>());
    for (std::size_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (std::size_t c = 0; c < cols; ++c) sum += p[r * cols + c] * gradient[r * cols + c];
      delta.set(r, sum);
    }
    const std::size_t cut = random() % (cols + 1);
    for (const auto& [begin, end] : {std::pair{std::size_t{0}, cut}, std::pair{cut, cols}}) {
      const std::size_t n = end - begin;
      const auto part_of = [&, from = begin](const Array& all) {
        Array part(type, rows * n);
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t c = 0; c < n; ++c) part.set(r * n + c, all[r * cols + from + c]);
        }
        return part;
      };
      Array q = part_of(scores), dq = part_of(gradient), wanted_q = q, wanted_dq = dq;
      CausalRows in{type, rows, n, n + 1, 0.125f};
      in.delta = delta.as<float>();
      set.softmax_causal_backward(in, q.data(), dq.data(), lse.as<float>());
      reference::softmax_causal_backward(in, wanted_q.data(), wanted_dq.data(), lse.as<float>());
      expect_close(q, wanted_q, 4e-6, 1e-9, "p");
      expect_close(dq, wanted_dq, type == Type::f32 ? 4e-6 : 4e-3, 0.25, "ds");
      expect_close(q, part_of(p), 4e-6, 1e-9, "p of the whole");
      expect_close(dq, part_of(d), type == Type::f32 ? 4e-6 : 4e-3, 0.25, "ds of the whole");
    }
  });
}

TEST(CrossEntropy, MatchesTheReference) {
  each_case([](const KernelSet& set, Type type, std::size_t rows, std::size_t cols,
               std::mt19937& random) {
    if (cols == 0) return;
    Array logits = random_array(type, rows * cols, random, 4), wanted = logits;
    std::vector<std::int64_t> targets;
    for (std::size_t r = 0; r < rows; ++r) {
      targets.push_back(r == 1 ? -1 : static_cast<std::int64_t>(random() % cols));
    }
    Array losses(Type::f32, rows), wanted_losses(Type::f32, rows);
    set.cross_entropy_rows(logits.data(), type, rows, cols, targets.data(), losses.as<float>());
    reference::cross_entropy_rows(wanted.data(), type, rows, cols, targets.data(),
                                  wanted_losses.as<float>());
    expect_close(losses, wanted_losses, 2e-6, 4, "loss");
    expect_close(logits, wanted, 4e-6, 0.1, "gradient");
  });
}

// With a nearly certain token in bf16, p itself would round to 1.
TEST(CrossEntropy, KeepsTheGradientOfANearlyCertainToken) {
  for (const KernelSet* set : usable_sets()) {
    Array logits(Type::bf16, 2);
    const std::uint16_t eight = 0x4100, zero = 0;  // as bf16
    std::memcpy(logits.data(), &eight, 2);
    std::memcpy(static_cast<std::byte*>(logits.data()) + 2, &zero, 2);
    const std::int64_t target = 0;
    float loss = 0;
    set->cross_entropy_rows(logits.data(), Type::bf16, 1, 2, &target, &loss);
    std::uint16_t bits = 0;
    std::memcpy(&bits, logits.data(), 2);
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float gradient = 0;
    std::memcpy(&gradient, &wide, 4);
    const double wanted = -1 / (1 + std::exp(8.0));
    EXPECT_NEAR(gradient, wanted, -wanted / 200) << set->name;
  }
}

TEST(CrossEntropy, PropagatesNanAndInfinity) {
  for (const KernelSet* set : usable_sets()) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (const std::size_t where : {0u, 5u, 36u}) {
        std::vector<float> row(37, 1.0f);
        row[where] = bad;
        const std::int64_t target = 2;
        float loss = 0;
        set->cross_entropy_rows(row.data(), Type::f32, 1, row.size(), &target, &loss);
        EXPECT_FALSE(std::isfinite(loss)) << set->name << " " << bad << " at " << where;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
