#pragma once

// State of an engine as in a checkpoint, without files: saved with one number of ranks and stage,
// loaded with another.

#include "tests/zero/oracle.h"

namespace tessera::zero::test {

struct WholeState {
  std::map<std::string, at::Tensor> values;  // by "param state", in memory order
  StepCounts progress;
};

inline void one_step(Engine& engine, Net& net, const Batch& batch) {
  engine.backward(forward_loss(engine, net, batch));
  engine.step();
}

// Every rank sees the same batch, so that the number of ranks changes nothing but rounding.
inline Batch common_batch(const Net& net, int step) { return net.batch(batch_seed(step, 0, 0)); }

// Trains steps [from, to) on the given number of ranks, after loading `start` if it is not null.
// Returns the parameters and states afterwards.
inline WholeState train_from(const Case& run, int from, int to, const WholeState* start) {
  WholeState result;
  std::mutex guard;
  over(run.ranks, [&](const comm::Group& group) {
    auto net = make_net(run.net);
    net->initialize(start == nullptr ? 7 : 8);  // values that are not loaded will differ
    Engine engine(net, group, run.options);
    const at::NoGradGuard no_grad;
    if (start != nullptr) {
      std::size_t loaded = 0;
      for (const StateShard& shard : engine.state(StateScope::held)) {
        if (shard.values.numel() == 0) continue;
        const at::Tensor& whole = start->values.at(shard.param + " " + shard.state);
        shard.values.copy_(whole.narrow(0, shard.begin, shard.values.numel()));
        ++loaded;
      }
      ASSERT_GT(loaded, 0u);
      engine.resume(start->progress);
    }
    for (int step = from; step < to; ++step) {
      const at::AutoGradMode grad(true);
      one_step(engine, *net, common_batch(*net, step));
    }
    engine.synchronize();
    std::map<std::string, std::int64_t> sizes;
    for (const auto& [name, value] : engine.full_parameters()) sizes[name] = value.numel();
    const std::lock_guard lock(guard);
    for (const StateShard& shard : engine.state(StateScope::owned)) {
      const std::int64_t size =
          shard.state == "buffer" ? shard.values.numel() : sizes.at(shard.param);
      at::Tensor& whole = result.values[shard.param + " " + shard.state];
      if (!whole.defined()) whole = at::zeros({size}, shard.values.options());
      whole.narrow(0, shard.begin, shard.values.numel()).copy_(shard.values);
    }
    if (group.rank() == 0) result.progress = engine.progress();
  });
  return result;
}

inline void expect_same_bits(const WholeState& got, const WholeState& wanted,
                             const std::string& what) {
  ASSERT_EQ(got.values.size(), wanted.values.size()) << what;
  for (const auto& [name, values] : wanted.values) {
    EXPECT_TRUE(got.values.at(name).equal(values)) << what << ": " << name;
  }
  EXPECT_EQ(got.progress.updates, wanted.progress.updates) << what;
}

inline void expect_close(const WholeState& got, const WholeState& wanted, double relative,
                         const std::string& what) {
  ASSERT_EQ(got.values.size(), wanted.values.size()) << what;
  for (const auto& [name, values] : wanted.values) {
    if (values.numel() == 0) continue;
    const double scale = std::max(1e-3, values.abs().max().item<double>());
    const double off = (got.values.at(name) - values).abs().max().item<double>();
    EXPECT_LE(off, relative * scale) << what << ": " << name;
  }
}

}  // namespace tessera::zero::test
