// A pipeline computes the same as one process.

#include "tessera/pipeline/executor.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tessera/core/text.h"
#include "tessera/nn/matmul.h"
#include "tests/pipeline/nets.h"

namespace tessera::pipeline {
namespace {

using test::Layers;
using test::NetOptions;
using test::Result;

struct Case {
  std::string schedule = "1f1b";
  int ranks = 2, micros = 4, chunks = 1;
  NetOptions net;
  Options options;
  int steps = 2;

  std::string describe() const {
    return str(schedule, ", ", ranks, " ranks, ", micros, " micro-batches, ", chunks, " chunks, ",
               net.kind, ", ", nn::name(net.recompute), ", ahead ", options.ahead);
  }
};

// Every rank creates all layers, runs its own and returns their gradients.
Result run_pipeline(const Case& run) {
  const schedule::Schedule schedule =
      schedule::make(run.schedule, run.ranks, run.micros, run.chunks);
  Result all;
  std::mutex mutex;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(run.ranks));
  test::over(run.ranks, [&](const comm::Group& group) {
    const Layers layers = test::make_net(run.net);
    Executor executor(schedule, group, test::chunks_of(layers, schedule, group.rank()),
                      run.options);
    for (int step = 0; step < run.steps; ++step) executor.run();
    const Losses got = executor.losses();
    const std::lock_guard lock(mutex);
    losses[static_cast<std::size_t>(group.rank())] = got.micro;
    std::size_t i = 0;
    for (const auto& layer : layers) {
      for (const at::Tensor& p : layer.params) {
        if (all.grads.size() <= i) all.grads.emplace_back();
        if (p.grad().defined()) {
          EXPECT_FALSE(all.grads[i].defined()) << "parameter " << i << " is on two ranks";
          all.grads[i] = p.grad();
        }
        ++i;
      }
    }
  });
  for (const auto& of_rank : losses) EXPECT_EQ(of_rank, losses[0]) << run.describe();
  all.losses = losses[0];
  return all;
}

void expect_same(const Case& run) {
  const Result want = test::run_alone(run.net, run.micros, run.steps);
  const Result got = run_pipeline(run);
  // Deferred products use our kernels; others may use ATen's, whose last bit can differ.
  const bool exact = run.schedule.find("zb") != 0 || nn::beats_aten(at::empty({1}, run.net.dtype));
  const double tolerance = run.net.dtype == at::kFloat ? 1e-5 : 3e-2;
  ASSERT_EQ(got.grads.size(), want.grads.size());
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    if (exact) {
      EXPECT_EQ(got.losses[i], want.losses[i]) << run.describe() << ", micro-batch " << i;
    } else {
      EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * std::abs(want.losses[i]))
          << run.describe();
    }
  }
  for (std::size_t i = 0; i < want.grads.size(); ++i) {
    ASSERT_TRUE(got.grads[i].defined()) << run.describe() << ", parameter " << i;
    EXPECT_TRUE(exact ? at::equal(got.grads[i], want.grads[i])
                      : at::allclose(got.grads[i], want.grads[i], tolerance, tolerance))
        << run.describe() << ", parameter " << i << "\n"
        << (got.grads[i] - want.grads[i]).abs().max();
  }
}

class Oracle : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Schedules, Oracle, ::testing::ValuesIn(schedule::names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Oracle, MatchesLossAndGradientsOfOneProcess) {
  const std::vector<std::string> kinds = {"linears", "blocks", "torch"};
  std::size_t turn = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const int micros : {1, 2, 3, 5, 8}) {
      for (const int chunks : {1, 2}) {
        if (GetParam() == "interleaved" ? micros < ranks : chunks > 1) continue;
        Case run{GetParam(), ranks, micros, chunks, {}, {}, 2};
        run.net.kind = kinds[turn++ % kinds.size()];
        run.options.ahead = static_cast<int>(turn % 4);
        expect_same(run);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Oracle, MatchesWithRecomputation) {
  for (const auto mode : {nn::Recompute::selective, nn::Recompute::full}) {
    for (const char* kind : {"linears", "blocks", "torch"}) {
      Case run{GetParam(), 2, 4, GetParam() == "interleaved" ? 2 : 1, {}, {}, 2};
      run.net.kind = kind;
      run.net.recompute = mode;
      expect_same(run);
    }
  }
}

TEST_P(Oracle, MatchesInBFloat16) {
  Case run{GetParam(), 2, 3, GetParam() == "interleaved" ? 2 : 1, {}, {}, 1};
  run.net.dtype = at::kBFloat16;
  expect_same(run);
}

}  // namespace
}  // namespace tessera::pipeline
