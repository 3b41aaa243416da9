// A rank dies in the middle of a step. Ranks are processes here.

#include <gtest/gtest.h>

#include "tests/comm/processes.h"
#include "tests/pipeline/nets.h"

namespace tessera::pipeline {
namespace {

using namespace std::chrono_literals;
using comm::testing::Processes;

class Death : public ::testing::TestWithParam<std::tuple<std::string, int>> {};
INSTANTIATE_TEST_SUITE_P(Schedules, Death,
                         ::testing::Combine(::testing::Values("1f1b", "interleaved", "zb-h1"),
                                            ::testing::Values(0, 1, 2)));

TEST_P(Death, IsNamedByAllRanks) {
  const auto [name, dead] = GetParam();
  const schedule::Schedule schedule = schedule::make(name, 3, 4, 2);
  Processes ranks(3, [&, victim = dead](std::shared_ptr<comm::Backend> backend) {
    at::set_num_threads(1);
    const comm::Group group(std::move(backend));
    const auto layers = test::make_net({});
    std::vector<Chunk> chunks = test::chunks_of(layers, schedule, group.rank());
    int step = 0;
    chunks[0].forward = [&, plain = chunks[0].forward](const at::Tensor& x, int micro) {
      if (group.rank() == victim && step == 1 && micro == 2) kill(getpid(), SIGKILL);
      return plain(x, micro);
    };
    Executor executor(schedule, group, chunks);
    for (;; ++step) executor.run();
  });
  ASSERT_NE(ranks.await_end(dead, 60s), -1) << "the victim is still running";
  for (int r = 0; r < 3; ++r) {
    if (r == dead) continue;
    EXPECT_NE(ranks.await_end(r, 30s), -1) << "rank " << r << " hangs";
    const std::string text = ranks.error(r);
    EXPECT_NE(text.find("rank " + std::to_string(dead) + " "), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tessera::pipeline
