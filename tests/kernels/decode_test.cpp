#include "tessera/kernels/decode.h"

#include <gtest/gtest.h>

#include "tests/kernels/arrays.h"

namespace tessera::kernels {
namespace {

// Calls f(set, type, random) for all sets and types.
template <class Body>
void each_set(Body&& f) {
  std::mt19937 random(7);
  for (const KernelSet* set : usable_sets()) {
    for (const Type type : both_types) {
      SCOPED_TRACE(testing::Message() << set->name << " type " << int(type));
      f(*set, type, random);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(FewRows, MatchesTheReference) {
  each_set([](const KernelSet& set, Type type, std::mt19937& random) {
    for (const std::size_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 11, 17}) {
      for (const std::size_t in : {1, 4, 7, 16, 33, 130, 1700}) {
        for (const std::size_t out : {1, 3, 8, 21}) {
          Array x = random_array(Type::f32, rows * in, random);
          const Array weight = random_array(type, out * in, random);
          Array bias = random_array(Type::f32, out, random);
          for (const bool add : {false, true}) {
            const FewRows what{type,
                               rows,
                               in,
                               out,
                               x.as<float>(),
                               weight.data(),
                               in % 2 == 0 ? bias.as<float>() : nullptr,
                               add};
            Array y = random_array(Type::f32, rows * out, random), wanted = y;
            // In two calls, as if split between threads.
            set.few_rows_linear(what, y.as<float>(), 0, out / 2);
            set.few_rows_linear(what, y.as<float>(), out / 2, out);
            reference::few_rows_linear(what, wanted.as<float>(), 0, out);
            expect_close(y, wanted, 1e-6, 4 * std::sqrt(double(in)), "y");
          }
        }
      }
    }
  });
}

// A generated sequence does not depend on the others in its batch.
TEST(FewRows, RowBitsDoNotDependOnOtherRows) {
  each_set([](const KernelSet& set, Type type, std::mt19937& random) {
    const std::size_t out = 29;
    for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 19}) {
      const std::size_t in = rows % 2 == 0 ? 77 : 901;
      Array x = random_array(Type::f32, rows * in, random);
      const Array weight = random_array(type, out * in, random);
      FewRows what{type, rows, in, out, x.as<float>(), weight.data(), nullptr, false};
      Array together(Type::f32, rows * out);
      set.few_rows_linear(what, together.as<float>(), 0, out);
      what.rows = 1;
      for (std::size_t r = 0; r < rows; ++r) {
        Array alone(Type::f32, out);
        what.x = x.as<float>() + r * in;
        set.few_rows_linear(what, alone.as<float>(), 0, 5);  // also other tiles
        set.few_rows_linear(what, alone.as<float>(), 5, out);
        for (std::size_t o = 0; o < out; ++o) ASSERT_EQ(alone[o], together[r * out + o]);
      }
    }
  });
}

TEST(CachedAttention, MatchesTheReference) {
  each_set([](const KernelSet& set, Type type, std::mt19937& random) {
    for (const std::size_t heads : {1, 3}) {
      for (const std::size_t dim : {2, 6, 16, 40, 64, 96}) {
        for (const std::size_t tokens : {1, 2, 7, 8, 9, 31, 100}) {
          Array q = random_array(Type::f32, heads * dim, random, 3);
          const Array k = random_array(type, tokens * dim, random),
                      v = random_array(type, tokens * dim, random);
          for (const float cap : {0.0f, 2.0f}) {
            CachedAttention what{type,     heads,    dim,  tokens, q.as<float>(),
                                 k.data(), v.data(), 0.3f, cap};
            Array scores(Type::f32, tokens), out(Type::f32, heads * dim), wanted = out;
            Array lse(Type::f32, heads), wanted_lse = lse;
            if (tokens % 2 == 0) what.lse = lse.as<float>();
            set.cached_attention(what, scores.as<float>(), out.as<float>());
            if (tokens % 2 == 0) what.lse = wanted_lse.as<float>();
            reference::cached_attention(what, nullptr, wanted.as<float>());
            expect_close(out, wanted, 1e-5, 1, "out");
            if (what.lse != nullptr) expect_close(lse, wanted_lse, 1e-5, 1, "log-sum-exp");
            EXPECT_TRUE(scores.guarded());
          }
        }
      }
    }
  });
}

TEST(RmsNormRows, MatchesTheReference) {
  each_set([](const KernelSet& set, Type, std::mt19937& random) {
    for (const std::size_t cols : {1, 5, 32, 77}) {
      Array x = random_array(Type::f32, 3 * cols, random),
            w = random_array(Type::f32, cols, random);
      Array wanted(Type::f32, 3 * cols);
      reference::rms_norm_rows(x.as<float>(), w.as<float>(), 1e-5f, 3, cols, wanted.as<float>());
      set.rms_norm_rows(x.as<float>(), w.as<float>(), 1e-5f, 3, cols, x.as<float>());
      expect_close(x, wanted, 4e-6, 1, "y");
    }
  });
}

TEST(Silu, MatchesTheReference) {
  each_set([](const KernelSet& set, Type, std::mt19937& random) {
    for (const std::size_t n : {1, 5, 32, 77}) {
      Array x = random_array(Type::f32, n, random, 20), wanted = x;
      reference::silu(wanted.as<float>(), n);
      set.silu(x.as<float>(), n);
      expect_close(x, wanted, 4e-6, 0.01, "x");
    }
  });
}

TEST(SoftCap, MatchesTheReference) {
  each_set([](const KernelSet& set, Type, std::mt19937& random) {
    for (const float cap : {0.5f, 30.0f}) {
      for (const std::size_t n : {1, 5, 32, 77}) {
        Array x = random_array(Type::f32, n, random, 40), wanted = x;
        x.set(0, 0);
        wanted.set(0, 0);
        reference::soft_cap(wanted.as<float>(), cap, n);
        set.soft_cap(x.as<float>(), cap, n);
        expect_close(x, wanted, 1e-6, cap, "x");
      }
    }
  });
}

}  // namespace
}  // namespace tessera::kernels
