#include "tessera/train/phase_clock.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/core/errors.h"

namespace tessera::train {
namespace {

class PhaseClocks : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == c10::kCUDA && !at::hasCUDA()) GTEST_SKIP() << "skipped: no CUDA device here";
  }
  // Runs work on the device that takes a while.
  void work() const {
    const at::Tensor x = at::ones({256, 256}, at::device(device));
    for (int i = 0; i < 20; ++i) (void)at::mm(x, x);
  }
  const c10::Device device{GetParam(),
                           static_cast<c10::DeviceIndex>(GetParam() == c10::kCPU ? -1 : 0)};
};

TEST_P(PhaseClocks, PhasesAddUpToTheStep) {
  PhaseClock clock(device);
  const std::vector<std::string> names = {"forward", "backward", "forward", "backward",
                                          "optimizer"};
  for (int step = 0; step < 3; ++step) {
    clock.begin_step();
    for (std::size_t i = 0; i < names.size(); ++i) {
      work();
      clock.mark(names[i], static_cast<int>(i) / 2);
    }
    clock.end_step();
  }
  EXPECT_EQ(clock.waiting(), 3u);
  for (int step = 0; step < 3; ++step) {
    const PhaseClock::Step times = clock.take();
    ASSERT_EQ(times.phases.size(), names.size());
    double sum = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const PhaseClock::Phase& phase = times.phases[i];
      EXPECT_EQ(phase.name, names[i]);
      EXPECT_EQ(phase.micro, static_cast<int>(i) / 2);
      EXPECT_GT(phase.seconds, 0);
      EXPECT_NEAR(phase.from_s, sum, 1e-4);  // each begins at the end of the previous one
      sum += phase.seconds;
    }
    EXPECT_LE(sum, times.work_s + 1e-4);
    // Measured from the end of the previous step, if there was one.
    EXPECT_GE(times.step_s, step == 0 ? times.work_s : times.work_s - 1e-4);
  }
  EXPECT_EQ(clock.waiting(), 0u);
  EXPECT_THROW(clock.take(), UsageError);
}

TEST_P(PhaseClocks, PausesBelongToNoStep) {
  PhaseClock clock(device);
  const auto step = [&] {
    clock.begin_step();
    work();
    clock.end_step();
    return clock.take();
  };
  step();
  work();
  const PhaseClock::Step with = step();  // work between the steps counts for this step
  clock.pause();
  work();
  const PhaseClock::Step without = step();
  EXPECT_GT(with.step_s, with.work_s);
  EXPECT_EQ(without.step_s, without.work_s);
  EXPECT_TRUE(without.phases.empty());
}

TEST_P(PhaseClocks, DropsAFailedStep) {
  PhaseClock clock(device);
  clock.mark("outside any step");
  clock.end_step();
  EXPECT_EQ(clock.waiting(), 0u);
  clock.begin_step();
  clock.mark("forward");  // then the step throws
  clock.begin_step();
  clock.mark("optimizer");
  clock.end_step();
  ASSERT_EQ(clock.waiting(), 1u);
  EXPECT_EQ(clock.take().phases.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Devices, PhaseClocks, ::testing::Values(c10::kCPU, c10::kCUDA),
                         [](const auto& device) { return c10::DeviceTypeName(device.param); });

}  // namespace
}  // namespace tessera::train
