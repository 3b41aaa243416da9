#include "tessera/memory/allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/memory/device_memory.h"

namespace tessera::memory {
namespace {

using Category = MemoryCategory;

class Allocator : public ::testing::Test {
 protected:
  void SetUp() override {
    static const at::Tensor before = at::arange(1000);  // created before install()
    install();
    EXPECT_TRUE(installed());
    old = before;
  }
  std::int64_t now(Category category) const { return ledger->counts()[category].now; }

  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>("rank 0");
  at::Tensor old;
};

TEST_F(Allocator, CountsRequestedBytesRoundedTo64) {
  const OwnerScope owner(ledger);
  for (const std::int64_t n : {1, 15, 16, 17, 1000, 1'000'000}) {
    const at::Tensor x = at::empty({n}, at::kFloat);
    EXPECT_EQ(now(Category::temporary), (4 * n + 63) / 64 * 64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 64, 0u);
  }
  const at::Tensor nothing = at::empty({0});
  EXPECT_EQ(now(Category::temporary), 0);
  EXPECT_EQ(ledger->counts().total.peak, 4'000'000);
}

TEST_F(Allocator, ScopesNest) {
  const at::Tensor outside = at::empty({64});
  auto other = std::make_shared<Ledger>("other");
  {
    const OwnerScope owner(ledger);
    const CategoryScope params(Category::params);
    const at::Tensor a = at::empty({16});
    {
      const OwnerScope inner(other);
      const CategoryScope grads(Category::grads);
      const at::Tensor b = at::empty({32});
      EXPECT_EQ(other->counts()[Category::grads].now, 128);
      {
        const OwnerScope uncounted(nullptr);
        const at::Tensor c = at::empty({1000});
        EXPECT_EQ(current_ledger(), nullptr);
      }
      EXPECT_EQ(current_ledger(), other);
    }
    EXPECT_EQ(current_category(), Category::params);
    const at::Tensor d = at::empty({16});
    EXPECT_EQ(now(Category::params), 128);
    EXPECT_EQ(other->counts().total.now, 0);
    EXPECT_EQ(other->counts().total.peak, 128);
  }
  EXPECT_EQ(current_ledger(), nullptr);
  EXPECT_EQ(current_category(), Category::temporary);
  EXPECT_EQ(ledger->counts().total.now, 0);
}

TEST_F(Allocator, TensorStaysChargedAfterItsScopeEnds) {
  at::Tensor x;
  {
    const OwnerScope owner(ledger);
    const CategoryScope category(Category::optimizer);
    x = at::ones({100, 100});
  }
  EXPECT_EQ(now(Category::optimizer), 40'000);
  std::thread([moved = std::move(x)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(now(Category::optimizer), 0);
}

TEST_F(Allocator, TensorKeepsItsLedgerAlive) {
  at::Tensor x;
  std::weak_ptr<Ledger> watched;
  {
    auto dying = std::make_shared<Ledger>("dying");
    watched = dying;
    const OwnerScope owner(dying);
    x = at::ones({10});
  }
  ASSERT_FALSE(watched.expired());
  EXPECT_EQ(watched.lock()->counts().total.now, 64);
  x.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(Allocator, CountsThreadsSeparately) {
  constexpr int kThreads = 4;
  std::vector<std::shared_ptr<Ledger>> ledgers;
  std::vector<std::vector<at::Tensor>> kept(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) ledgers.push_back(std::make_shared<Ledger>());
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const OwnerScope owner(ledgers[t]);
      const CategoryScope category(static_cast<Category>(t));
      for (int i = 1; i <= 500; ++i) {
        const at::Tensor dropped = at::empty({i * (t + 1)});
        kept[t].push_back(at::empty({16 * i}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(ledgers[t]->counts().categories[t].now, 64 * 500 * 501 / 2);
    EXPECT_EQ(ledgers[t]->counts().total.now, 64 * 500 * 501 / 2);
    kept[t].clear();
    EXPECT_EQ(ledgers[t]->counts().total.now, 0);
  }
}

TEST_F(Allocator, ThrowsAtTheLimitBeforeAllocating) {
  auto small = std::make_shared<Ledger>("rank 1", 1 << 20);
  const OwnerScope owner(small);
  const at::Tensor x = at::empty({1 << 17});  // half of the limit
  const CacheCounts before = cache_counts();
  EXPECT_THROW((void)at::empty({1 << 19}), OutOfMemoryError);
  EXPECT_EQ(cache_counts().in_use, before.in_use);
  EXPECT_EQ(small->counts().total.now, 1 << 19);
  // The process continues: tensors that fit still work, also as results of operations.
  EXPECT_THROW((void)(x.unsqueeze(1) + at::ones({8})), OutOfMemoryError);
  EXPECT_EQ((at::ones({100}) + 1).sum().item<float>(), 200);
}

TEST_F(Allocator, ReusesFreedBlocks) {
  const void* address = at::empty({100, 1000}).data_ptr();
  const CacheCounts before = cache_counts();
  EXPECT_EQ(at::empty({100, 1000}).data_ptr(), address);
  EXPECT_EQ(cache_counts().hits, before.hits + 1);
  EXPECT_GT(cache_counts().cached, 0);
}

TEST_F(Allocator, TensorsFromBeforeInstallStayValid) {
  EXPECT_EQ(old.sum().item<std::int64_t>(), 499'500);
  const OwnerScope owner(ledger);
  at::Tensor grown = old.clone();
  EXPECT_EQ(ledger->counts().total.now, 8000);
  grown.resize_({2000});
  EXPECT_EQ(ledger->counts().total.now, 16'000);
  EXPECT_TRUE(grown.narrow(0, 0, 1000).equal(old));
}

TEST_F(Allocator, DevicesWithoutAnAllocatorHaveNoUsage) {
  EXPECT_FALSE(device_usage(c10::Device(c10::kCPU)).has_value());
  EXPECT_FALSE(device_usage(c10::Device(c10::kXPU)).has_value());
  EXPECT_NO_THROW(reset_device_peak(c10::Device(c10::kXPU)));
  if (!at::hasCUDA()) return;
  const at::Tensor x = at::zeros({1 << 20}, at::device(at::kCUDA));
  const std::optional<Usage> usage = device_usage(x.device());
  ASSERT_TRUE(usage.has_value());
  EXPECT_GE(usage->now, 4 << 20);
}

}  // namespace
}  // namespace tessera::memory
