// Memory, traffic, hooks and errors of a pipeline.

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/pipeline/executor.h"
#include "tessera/planner/rank_load.h"
#include "tests/pipeline/nets.h"

namespace tessera::pipeline {
namespace {

using schedule::Kind;
using test::Layers;
using test::NetOptions;

constexpr std::int64_t kRows = 4, kCols = 16;  // 256 bytes: no rounding by the allocator

// A chunk of `depth` products that keeps only its input and one tensor for each product. The last
// chunk returns the sum.
struct Products {
  std::vector<at::Tensor> weights;

  explicit Products(int depth, std::uint64_t seed) {
    for (int i = 0; i < depth; ++i) {
      weights.push_back(test::numbers({kRows, kCols}, seed + static_cast<std::uint64_t>(i))
                            .set_requires_grad(true));
    }
  }
  at::Tensor operator()(const at::Tensor& input, int micro, bool last) const {
    at::Tensor x = input.defined()
                       ? input
                       : test::numbers({kRows, kCols}, 50 + static_cast<std::uint64_t>(micro));
    for (const at::Tensor& w : weights) x = x.mul(w).tanh_();
    return last ? x.sum() : x;
  }
};

// Returns the peak of each rank after its actions, in units of one micro-batch in one chunk.
std::vector<double> held_at_most(const schedule::Schedule& schedule) {
  memory::install();
  std::vector<double> held(static_cast<std::size_t>(schedule.ranks));
  test::over(schedule.ranks, [&](const comm::Group& group) {
    auto ledger = std::make_shared<memory::Ledger>("rank");
    const memory::OwnerScope owner(ledger);
    std::vector<Chunk> chunks;
    for (int c = 0; c < schedule.chunks; ++c) {
      const int stage = schedule.stage(group.rank(), c);
      const bool last = stage + 1 == schedule.stage_count();
      chunks.push_back({[net = Products(2, static_cast<std::uint64_t>(10 * stage)), last](
                            const at::Tensor& x, int micro) { return net(x, micro, last); }});
    }
    // Held for a micro-batch in a chunk: input, two results, and the root (or the loss).
    const double unit = 3 * kRows * kCols * 4 + 64;
    double most = 0;
    Options options;
    options.ahead = 0;
    options.on_span = [&](const Span& span) {
      if (!schedule::is_compute(span.kind)) return;
      const auto now = static_cast<double>(ledger->counts()[MemoryCategory::activations].now);
      most = std::max(most, now / unit);
    };
    Executor executor(schedule, group, chunks, options);
    for (int step = 0; step < 2; ++step) executor.run();
    EXPECT_EQ(ledger->counts()[MemoryCategory::activations].now, 0) << "after the step";
    held[static_cast<std::size_t>(group.rank())] = most;
  });
  return held;
}

TEST(Memory, ActivationsInFlightMatchTheValidator) {
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const schedule::Schedule schedule = schedule::make(name, ranks, 6, 2);
      const std::vector<int> proven = validate(schedule).in_flight;
      const std::vector<double> held = held_at_most(schedule);
      for (std::size_t r = 0; r < held.size(); ++r) {
        EXPECT_EQ(held[r], proven[r]) << name << ", rank " << r << " of " << ranks;
        if (std::string(name) == "gpipe") {
          EXPECT_EQ(held[r], 6);
        }
        if (std::string(name) == "1f1b") {
          EXPECT_EQ(held[r], ranks - static_cast<int>(r));
        }
      }
    }
  }
}

// Layers that defer keep the inputs of their weight gradients until backward_weight.
TEST(Memory, DeferredGradientsKeepInputsUntilBackwardWeight) {
  memory::install();
  for (const char* name : {"zb-h1", "zb-v"}) {
    const schedule::Schedule schedule = schedule::make(name, 3, 6);
    test::over(3, [&](const comm::Group& group) {
      auto ledger = std::make_shared<memory::Ledger>("rank");
      const memory::OwnerScope owner(ledger);
      NetOptions net;
      const Layers layers = test::make_net(net);
      std::map<std::pair<int, int>, int> open;
      int most = 0;
      Options options;
      options.ahead = 0;
      options.on_span = [&](const Span& span) {
        int& state = open[{span.micro, span.chunk}];
        if (span.kind == Kind::forward) state = 1;
        if (span.kind == Kind::backward_weight) state = 0;
        int held = 0;
        for (const auto& [key, value] : open) held += value;
        most = std::max(most, held);
        if (held == 0 && schedule::is_compute(span.kind)) {
          EXPECT_EQ(ledger->counts()[MemoryCategory::activations].now, 0);
        }
      };
      Executor executor(schedule, group, test::chunks_of(layers, schedule, group.rank()), options);
      executor.run();
      EXPECT_EQ(ledger->counts()[MemoryCategory::activations].now, 0);
      EXPECT_EQ(most, executor.proof().in_flight[static_cast<std::size_t>(group.rank())]);
      EXPECT_NE(executor.describe().find("deferred"), std::string::npos) << executor.describe();
    });
  }
}

TEST(Traffic, CountedBytesMatchTheFormula) {
  for (const std::string& name : schedule::names()) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const int micros = 5, chunks = 2, steps = 2;
      const schedule::Schedule schedule = schedule::make(name, ranks, micros, chunks);
      test::over(ranks, [&](const comm::Group& group) {
        NetOptions net;
        net.kind = "blocks";
        const Layers layers = test::make_net(net);
        Executor executor(schedule, group, test::chunks_of(layers, schedule, group.rank()));
        const comm::TrafficCounts before = group.traffic();
        for (int step = 0; step < steps; ++step) executor.run();
        const comm::TrafficCounts sent = group.traffic() - before;
        const double tokens = test::kSamples * test::kLength;
        const double boundary = planner::boundary_bytes(tokens, 8, 4);
        EXPECT_EQ(static_cast<double>(sent.sent_bytes),
                  steps * planner::pipeline_bytes(schedule, group.rank(), boundary))
            << name << ", rank " << group.rank() << " of " << ranks;
        if (ranks > 1 && name == "interleaved" && group.rank() > 0 && group.rank() + 1 < ranks) {
          EXPECT_EQ(static_cast<double>(sent.sent_bytes), steps * 2 * chunks * micros * boundary);
        }
      });
    }
  }
}

// The backward hook receives every pass once, and the last one is marked.
TEST(Hooks, ReceiveEveryPassOnce) {
  for (const std::string& name : schedule::names()) {
    const int ranks = 2, micros = 4, chunks = 2;
    const schedule::Schedule schedule = schedule::make(name, ranks, micros, chunks);
    test::over(ranks, [&](const comm::Group& group) {
      const Layers layers = test::make_net({});
      std::set<std::pair<int, int>> backwards, weights;
      int last = 0, last_of_chunk = 0, weights_last = 0;
      Options options;
      options.backward = [&](const at::Tensor& root, const Pass& pass) {
        EXPECT_EQ(root.numel(), 1);
        EXPECT_EQ(last, 0) << "a pass after the last";
        (root * 0.5).backward();
        EXPECT_TRUE(backwards.emplace(pass.micro, pass.chunk).second);
        last += pass.last;
        last_of_chunk += pass.last_of_chunk;
      };
      options.backward_weight = [&](const std::function<void()>& add, const Pass& pass) {
        add();
        EXPECT_TRUE(weights.emplace(pass.micro, pass.chunk).second);
        EXPECT_TRUE(backwards.contains({pass.micro, pass.chunk}));
        EXPECT_EQ(weights_last, 0);
        weights_last += pass.last;
      };
      Executor executor(schedule, group, test::chunks_of(layers, schedule, group.rank()), options);
      executor.run();
      const std::size_t passes = static_cast<std::size_t>(micros * schedule.chunks);
      EXPECT_EQ(backwards.size(), passes) << name;
      EXPECT_EQ(last, 1);
      EXPECT_EQ(last_of_chunk, schedule.chunks);
      const bool defers = name.find("zb") == 0;
      EXPECT_EQ(weights.size(), defers ? passes : 0) << name;
      EXPECT_EQ(weights_last, defers ? 1 : 0);
      // A factor on the loss, and only that one, reaches every stage.
      const test::Result want = test::run_alone({}, micros, 1);
      std::size_t i = 0;
      for (const auto& layer : layers) {
        for (const at::Tensor& p : layer.params) {
          if (p.grad().defined()) {
            EXPECT_TRUE(at::allclose(p.grad(), want.grads[i] * 0.5, 1e-5, 1e-6)) << name << i;
          }
          ++i;
        }
      }
    });
  }
}

// As with an engine: `.grad` is a view of a buffer and stays one.
TEST(Hooks, DeferredGradientsRespectViews) {
  const schedule::Schedule schedule = schedule::zero_bubble_h1(2, 3);
  test::over(2, [&](const comm::Group& group) {
    const Layers layers = test::make_net({});
    std::vector<std::pair<at::Tensor, at::Tensor>> views;  // parameter, buffer
    for (const auto& layer : layers) {
      for (const at::Tensor& p : layer.params) {
        const at::Tensor buffer = at::zeros({p.numel() + 3});
        p.mutable_grad() = buffer.narrow(0, 3, p.numel()).view(p.sizes());
        views.emplace_back(p, buffer);
      }
    }
    Executor executor(schedule, group, test::chunks_of(layers, schedule, group.rank()));
    executor.run();
    const test::Result want = test::run_alone({}, 3, 1);
    int used = 0;
    for (std::size_t i = 0; i < views.size(); ++i) {
      const auto& [p, buffer] = views[i];
      const at::Tensor view = buffer.narrow(0, 3, p.numel()).view(p.sizes());
      EXPECT_EQ(p.grad().data_ptr(), view.data_ptr());
      if (!view.abs().max().is_nonzero()) continue;
      ++used;
      EXPECT_TRUE(at::allclose(view, want.grads[i], 1e-5, 1e-6)) << i;
    }
    EXPECT_GT(used, 2);
  });
}

template <typename F>
std::string usage_error(F&& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

void expect_says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Errors, NameSizesThatDoNotMatch) {
  test::over(2, [](const comm::Group& group) {
    const Chunk chunk{[](const at::Tensor& x, int) { return x; }};
    expect_says(usage_error([&] { Executor(schedule::gpipe(3, 2), group, {chunk}); }),
                {"3 ranks", "2"});
    expect_says(usage_error([&] { Executor(schedule::interleaved(2, 2, 2), group, {chunk}); }),
                {"2 chunks", "gave 1"});
    Options options;
    options.ahead = -1;
    expect_says(usage_error([&] { Executor(schedule::gpipe(2, 2), group, {chunk}, options); }),
                {"ahead"});
    schedule::Schedule broken = schedule::gpipe(2, 2);
    broken.actions[0].pop_back();
    EXPECT_THROW(Executor(broken, group, {chunk}), Error);
  });
}

// Runs two ranks whose stages are `first` and `last`. Returns the message of the UsageError.
std::string failure_of(const std::function<at::Tensor(int micro)>& first,
                       const std::function<at::Tensor(const at::Tensor&)>& last) {
  return usage_error([&] {
    test::over(2, [&](const comm::Group& group) {
      const bool end = group.rank() == 1;
      const at::Tensor w = at::ones({1}).set_requires_grad(true);
      Executor executor(
          schedule::gpipe(2, 3), group,
          {{[&](const at::Tensor& x, int micro) { return (end ? last(x) : first(micro)) * w; }}});
      executor.run();
    });
  });
}

TEST(Errors, NameBothShapesIfAShapeChanges) {
  expect_says(failure_of(
                  [](int micro) {
                    return at::ones({2, micro == 2 ? 5 : 4});
                  },
                  [](const at::Tensor& x) { return x.sum(); }),
              {"[2, 5]", "[2, 4]", "micro-batch 2", "stage 0 to 1"});
}

TEST(Errors, RejectALossThatIsNotAScalar) {
  expect_says(failure_of(
                  [](int) {
                    return at::ones({2, 4});
                  },
                  [](const at::Tensor& x) { return x; }),
              {"stage 1 of 2", "[2, 4]", "the loss"});
}

TEST(Errors, RejectAStepAfterAFailure) {
  Executor executor(schedule::gpipe(1, 1), comm::Group(),
                    {{[](const at::Tensor&, int) -> at::Tensor { throw DataError("no data"); }}});
  EXPECT_THROW(executor.run(), DataError);
  expect_says(usage_error([&] { executor.run(); }), {"failed"});
}

// A stage that ignores its input, and one without parameters.
TEST(Stages, WorkWithoutGradients) {
  test::over(3, [](const comm::Group& group) {
    const at::Tensor w = at::full({2, 2}, 3.0f).set_requires_grad(true);
    Chunk chunk;
    chunk.forward = [&](const at::Tensor& x, int micro) -> at::Tensor {
      if (group.rank() == 0) return at::full({2, 2}, static_cast<float>(micro));  // no parameters
      if (group.rank() == 1) return w * 2 + x.detach();
      return (x * w).sum();
    };
    Executor executor(schedule::one_f_one_b(3, 4), group, {chunk});
    EXPECT_THROW(executor.losses(), UsageError);
    executor.run();
    const std::uint64_t before = group.traffic().control_bytes;
    executor.run();
    // Shapes are sent in every step, and the last stage sends its losses to no rank.
    EXPECT_EQ(before == 0, group.rank() == 2);
    EXPECT_EQ(group.traffic().control_bytes, 2 * before);
    const Losses losses = executor.losses();
    EXPECT_EQ(losses.micro, (std::vector<double>{72, 84, 96, 108}));
    EXPECT_EQ(losses.sum(), 360);
    if (group.rank() == 1) {
      EXPECT_TRUE(at::equal(w.grad(), at::full({2, 2}, 48.0f)));
    }
  });
}

}  // namespace
}  // namespace tessera::pipeline
