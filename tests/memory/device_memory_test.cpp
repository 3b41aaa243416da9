// Device memory in the ledger. Without a GPU the test makes the reports of its allocator itself.

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <array>
#include <memory>
#include <optional>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/core/units.h"
#include "tessera/memory/allocator.h"
#include "tessera/memory/device_blocks.h"
#include "tessera/memory/device_memory.h"

namespace tessera::memory {
namespace {

using Category = MemoryCategory;

// Addresses of blocks; their contents are not used.
std::array<char, 16> addresses;
const c10::Device kGpu(c10::kCUDA, 0);

void hand_out(int block, std::int64_t bytes) {
  c10::reportMemoryUsageToProfiler(&addresses.at(static_cast<std::size_t>(block)), bytes, 0, 0,
                                   kGpu);
}
void take_back(int block, std::int64_t bytes) { hand_out(block, -bytes); }

class DeviceMemory : public ::testing::Test {
 protected:
  DeviceMemory() { install(); }
  std::int64_t now(Category category) const { return ledger->counts()[category].now; }
  std::int64_t in_all() const { return ledger->counts().total.now; }

  std::shared_ptr<Ledger> ledger =
      std::make_shared<Ledger>("rank 0", 1 << 20, CountedMemory::device);
};

TEST_F(DeviceMemory, CountsByTheCategoryOfTheAllocatingThread) {
  const OwnerScope owner(ledger);
  {
    const CategoryScope category(Category::activations);
    hand_out(0, 512);
    hand_out(1, 1024);
  }
  hand_out(2, 2048);
  EXPECT_EQ(now(Category::activations), 1536);
  EXPECT_EQ(now(Category::temporary), 2048);
  {
    const CategoryScope category(Category::grads);
    take_back(0, 512);
    take_back(2, 2048);
  }
  EXPECT_EQ(now(Category::activations), 1024);
  EXPECT_EQ(now(Category::temporary), 0);
  EXPECT_EQ(now(Category::grads), 0);
  EXPECT_EQ(ledger->counts().total.peak, 3584);
  take_back(1, 1024);
  EXPECT_EQ(in_all(), 0);
}

TEST_F(DeviceMemory, CountsNeitherOutsideScopesNorHostMemory) {
  hand_out(0, 512);
  {
    const OwnerScope owner(ledger);
    take_back(0, 512);  // an unknown block
    const at::Tensor host = at::ones({1 << 20});
    const Charge shared(ledger, Category::buffers, 1 << 22);
    EXPECT_EQ(in_all(), 0);
    hand_out(1, 512);
  }
  EXPECT_EQ(in_all(), 512);
  EXPECT_FALSE(c10::memoryProfilingEnabled());
  const OwnerScope owner(ledger);
  take_back(1, 512);
  EXPECT_EQ(in_all(), 0);
}

TEST_F(DeviceMemory, HostLedgersDoNotCountDeviceMemory) {
  const auto host = std::make_shared<Ledger>();
  const OwnerScope owner(host);
  EXPECT_FALSE(c10::memoryProfilingEnabled());
  hand_out(0, 512);
  EXPECT_EQ(host->counts().total.now, 0);
}

TEST_F(DeviceMemory, ChargesTheInnermostScope) {
  const auto other = std::make_shared<Ledger>("rank 1", 0, CountedMemory::device);
  const OwnerScope owner(ledger);
  {
    const OwnerScope inner(other);
    hand_out(0, 512);
    const OwnerScope again(other);
    hand_out(1, 512);
  }
  EXPECT_EQ(other->counts().total.now, 1024);
  hand_out(2, 512);
  EXPECT_EQ(in_all(), 512);
  for (const int block : {0, 1, 2}) take_back(block, 512);
  EXPECT_EQ(other->counts().total.now + in_all(), 0);
}

TEST_F(DeviceMemory, AutogradThreadsChargeTheSameLedgerAsTemporary) {
  const OwnerScope owner(ledger);
  const CategoryScope category(Category::activations);
  hand_out(0, 512);
  const at::ThreadLocalState state;  // as autograd copies it
  std::thread([&] {
    hand_out(3, 512);  // not reported yet
    const at::ThreadLocalStateGuard guard(state);
    hand_out(1, 1024);
    take_back(0, 512);
    const CategoryScope scope(Category::buffers);
    hand_out(2, 2048);
  }).join();
  EXPECT_EQ(now(Category::activations), 0);
  EXPECT_EQ(now(Category::temporary), 1024);
  EXPECT_EQ(now(Category::buffers), 2048);
  take_back(1, 1024);
  take_back(2, 2048);
  EXPECT_EQ(in_all(), 0);
}

TEST_F(DeviceMemory, EndsTheChargeOfAnUnseenFreeWhenTheAddressIsReused) {
  const OwnerScope owner(ledger);
  {
    const CategoryScope category(Category::optimizer);
    hand_out(0, 4096);
  }
  std::thread([] { take_back(0, 4096); }).join();
  EXPECT_EQ(now(Category::optimizer), 4096);
  hand_out(0, 512);
  EXPECT_EQ(now(Category::optimizer), 0);
  EXPECT_EQ(in_all(), 512);
  take_back(0, 512);
  EXPECT_EQ(in_all(), 0);
}

TEST_F(DeviceMemory, OutOfMemoryErrorContainsTheLedger) {
  const OwnerScope owner(ledger);
  const CategoryScope category(Category::activations);
  hand_out(0, 1000 * 512);
  try {
    c10::reportOutOfMemoryToProfiler(1 << 20, 600 << 10, 900 << 10, kGpu);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    const auto size = [](std::int64_t kibi) { return format_bytes(kibi << 10); };
    for (const std::string& part :
         {std::string("rank 0"), size(1024) + " more (activations)", "limit of " + size(1024),
          size(900), size(300), size(500), std::string("--memory-limit")}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
  }
  const OwnerScope unlimited(std::make_shared<Ledger>("rank 2", 0, CountedMemory::device));
  try {
    c10::reportOutOfMemoryToProfiler(1 << 20, 0, 0, kGpu);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:0 does not have"), std::string::npos);
  }
  take_back(0, 1000 * 512);
}

TEST_F(DeviceMemory, DoesNotReplaceAnActiveProfiler) {
  namespace profiler = torch::autograd::profiler;
  const std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  {
    const OwnerScope owner(ledger);
    hand_out(0, 512);
    const at::Tensor x = at::ones({10}) + 1;
  }
  const auto result = profiler::disableProfiler();
  EXPECT_FALSE(result->events().empty());
  EXPECT_EQ(in_all(), 0);
  // Counting resumes when the profiler ends.
  const OwnerScope owner(ledger);
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
  hand_out(0, 512);
  EXPECT_EQ(in_all(), 512);
  take_back(0, 512);
}

TEST(DeviceLimits, HasNoEffectOnTheCpu) { EXPECT_NO_THROW(DeviceLimit(c10::Device(c10::kCPU), 1)); }

// The tests below need a GPU.
class OnAGpu : public DeviceMemory {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "skipped: no CUDA device";
    at::zeros({1}, at::device(kGpu));
  }
};

TEST_F(OnAGpu, LedgerAgreesWithTheAllocator) {
  const std::int64_t before = device_usage(kGpu)->now;
  const OwnerScope owner(ledger);
  at::Tensor kept;
  {
    const CategoryScope category(Category::params);
    kept = at::zeros({3 << 20}, at::device(kGpu));
  }
  EXPECT_EQ(in_all(), device_usage(kGpu)->now - before);
  EXPECT_GE(now(Category::params), 12 << 20);
  EXPECT_LE(now(Category::params), 13 << 20);
  {
    // Backward of a GPU tensor runs on an autograd thread.
    const at::Tensor x = at::ones({1 << 20}, at::device(kGpu)).requires_grad_();
    (x * x).sum().backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_EQ(in_all(), device_usage(kGpu)->now - before);
  }
  EXPECT_EQ(in_all(), device_usage(kGpu)->now - before);
  EXPECT_EQ(now(Category::temporary), 0);
}

TEST_F(OnAGpu, EnforcesTheLimitAndTheProcessContinues) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto limited = std::make_shared<Ledger>("rank 7", 512 * kMiB, CountedMemory::device);
  {
    std::optional<DeviceLimit> limit;
    try {
      limit.emplace(kGpu, 512 * kMiB);
    } catch (const UsageError& error) {
      GTEST_SKIP() << "skipped: " << error.what();
    }
    const OwnerScope owner(limited);
    const CategoryScope category(Category::optimizer);
    const at::Tensor half = at::zeros({256 * kMiB}, at::device(kGpu).dtype(at::kByte));
    try {
      (void)at::zeros({300 * kMiB}, at::device(kGpu).dtype(at::kByte));
      FAIL();
    } catch (const OutOfMemoryError& error) {
      const std::string text = error.what();
      for (const char* part : {"rank 7", "315 MB more (optimizer)", "limit of 537 MB"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
      }
    }
    EXPECT_NO_THROW((void)at::zeros({100 * kMiB}, at::device(kGpu).dtype(at::kByte)));
  }
  EXPECT_NO_THROW((void)at::zeros({1024 * kMiB}, at::device(kGpu).dtype(at::kByte)));
}

}  // namespace
}  // namespace tessera::memory
