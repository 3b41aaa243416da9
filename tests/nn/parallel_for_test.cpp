// Tests [Note: parallel_for]: every element is visited once, on as many threads as torch may use,
// and the bits do not depend on their number.

#include "tessera/nn/parallel_for.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tessera/nn/ops.h"

namespace tessera::nn {
namespace {

// Sets the number of torch's threads while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST(ParallelFor, VisitsEveryElementOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    const Threads set(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {0, 1, 3, 64, 5000}) {
        for (const std::int64_t begin : {0, 11}) {
          std::vector<std::atomic<int>> seen(static_cast<std::size_t>(begin + count));
          parallel_for(begin, begin + count, grain, [&](std::int64_t from, std::int64_t to) {
            ASSERT_LT(from, to);
            for (std::int64_t i = from; i < to; ++i) ++seen[static_cast<std::size_t>(i)];
          });
          for (std::int64_t i = 0; i < begin + count; ++i) {
            ASSERT_EQ(seen[static_cast<std::size_t>(i)], i < begin ? 0 : 1)
                << i << " of " << count << ", grain " << grain << ", " << threads << " threads";
          }
        }
      }
    }
  }
}

TEST(ParallelFor, UsesTheThreadsOfTorch) {
  ASSERT_TRUE(has_threads());
  const Threads set(3);
  std::mutex mutex;
  std::set<std::thread::id> who;
  std::set<int> numbers;
  parallel_for(0, 3, 1, [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    who.insert(std::this_thread::get_id());
    numbers.insert(at::get_thread_num());
    EXPECT_TRUE(at::in_parallel_region());
  });
  EXPECT_EQ(who.size(), 3);
  EXPECT_EQ(numbers, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(at::get_thread_num(), 0);
}

TEST(ParallelFor, NestedLoopStaysOnItsThread) {
  const Threads set(3);
  std::atomic<int> parts{0};
  parallel_for(0, 3, 1, [&](std::int64_t, std::int64_t) {
    parallel_for(0, 100, 1, [&](std::int64_t from, std::int64_t to) {
      EXPECT_EQ(to - from, 100);
      ++parts;
    });
  });
  EXPECT_EQ(parts, 3);
}

TEST(ParallelFor, RethrowsExceptionsOfParts) {
  const Threads set(3);
  std::atomic<int> ended{0};
  EXPECT_THROW(parallel_for(0, 3, 1,
                            [&](std::int64_t from, std::int64_t) {
                              if (from == 1) throw std::out_of_range("the second");
                              ++ended;
                            }),
               std::out_of_range);
  EXPECT_EQ(ended, 2);
}

// Results of Tessera's operations for the same input with one thread and with several. Excludes
// matrix products, because torch may split them differently.
std::vector<at::Tensor> results() {
  at::manual_seed(7);
  std::vector<at::Tensor> out;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto leaf = [&](std::vector<std::int64_t> shape) {
      return at::randn(shape).to(type).requires_grad_();
    };
    const at::Tensor x = leaf({1000, 96}), weight = leaf({96}), bias = leaf({96});
    const at::Tensor y = layer_norm(x, weight, bias, 1e-5);
    const at::Tensor z = gelu(y, bias);
    z.backward(at::ones_like(z));
    for (const at::Tensor& each : {y, z, x.grad(), weight.grad(), bias.grad()}) {
      out.push_back(each.detach());
    }
  }
  return out;
}

TEST(ParallelFor, OpsAreBitwiseEqualOnAnyNumberOfThreads) {
  std::vector<at::Tensor> one;
  {
    const Threads set(1);
    one = results();
  }
  for (const int threads : {2, 3, 7}) {
    const Threads set(threads);
    const std::vector<at::Tensor> many = results();
    ASSERT_EQ(many.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(many[i], one[i])) << "result " << i << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace tessera::nn
