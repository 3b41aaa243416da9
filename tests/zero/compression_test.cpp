// Gradients that are sent in fewer bits, or in low rank.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/zero/power_sgd.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

Case compressed(const std::string& net, int ranks, int stage, GradCompression how) {
  Case run;
  run.net = net;
  run.ranks = ranks;
  run.options.stage = stage;
  run.options.grad_compression = how;
  return run;
}

// train() checks that all ranks agree.
TEST(Compression, SendsHalfTheBytesAndKeepsStagesBitwiseEqual) {
  for (const GradCompression how : {GradCompression::bf16, GradCompression::fp16}) {
    for (const char* net : {"mlp", "tied", "odd"}) {
      for (const int ranks : {2, 3}) {
        for (const ReducePolicy policy : {ReducePolicy::last, ReducePolicy::each}) {
          std::vector<Result> results;
          for (int stage = 0; stage < 4; ++stage) {
            Case run = compressed(net, ranks, stage, how);
            run.options.micro_batches = 2;
            run.options.reduce = policy;
            run.options.bucket_bytes = stage % 2 == 0 ? 64 : 0;
            results.push_back(train(run));
            EXPECT_EQ(results.back().sent, results.back().expected) << run.describe();
            EXPECT_EQ(results.back().hash, results.front().hash) << run.describe();
            if (stage > 0 || std::string(net) == "odd") continue;
            run.options.grad_compression = GradCompression::none;
            const Result plain = train(run);
            EXPECT_EQ(2 * results.back().sent, plain.sent) << run.describe();
            EXPECT_NE(results.back().hash, plain.hash);
            EXPECT_LT(distance(results.back(), plain), 0.05) << run.describe();
          }
        }
      }
    }
  }
}

TEST(Compression, HasNoEffectOnOneRank) {
  Case run = compressed("tied", 1, 0, GradCompression::bf16);
  const Result with = train(run);
  run.options.grad_compression = GradCompression::none;
  const Result without = train(run);
  EXPECT_EQ(with.hash, without.hash);
  EXPECT_EQ(with.sent, without.sent);
}

TEST(Compression, Rejects16BitGradients) {
  for (const GradCompression how : {GradCompression::bf16, GradCompression::fp16}) {
    Options options;
    options.grad_compression = how;
    options.layout = parse_state_layout("bf16");
    EXPECT_THROW(Engine(std::make_shared<Mlp>(), comm::Group(), options), UsageError);
  }
}

// After 40 steps the loss has fallen, within 2% (16 bits) or 10% (rank 2) of the uncompressed one.
TEST(Compression, LossesStayCloseToUncompressedOnes) {
  Case run = compressed("tied", 2, 0, GradCompression::none);
  run.steps = 40;
  run.options.optimizer = AdamW{.lr = 0.01};
  const Result plain = train(run);
  ASSERT_LT(plain.losses.back(), 0.7 * plain.losses.front());
  for (const GradCompression how :
       {GradCompression::bf16, GradCompression::fp16, GradCompression::powersgd}) {
    run.options.grad_compression = how;
    run.options.power_sgd = {.rank = 2, .warm_up_steps = 3, .least_saving = 1};
    const double tolerance = how == GradCompression::powersgd ? 0.1 : 0.02;
    const Result result = train(run);
    EXPECT_LT(result.losses.back(), 0.7 * result.losses.front()) << name(how);
    EXPECT_NEAR(result.losses.back() / plain.losses.back(), 1, tolerance) << name(how);
  }
}

TEST(PowerSgd, SendsFactorsAndKeepsRanksEqual) {
  for (const char* net : {"mlp", "tied", "odd", "conv"}) {
    for (const int ranks : {2, 3}) {
      Case run = compressed(net, ranks, 0, GradCompression::powersgd);
      run.options.power_sgd = {.rank = ranks - 1, .warm_up_steps = 0, .least_saving = 1};
      run.options.bucket_bytes = ranks == 2 ? 64 : 0;
      run.options.micro_batches = 2;
      const Result result = train(run);
      EXPECT_EQ(result.sent, result.expected) << run.describe();
    }
  }
}

// r · (m + n) elements for each matrix, and whole vectors, each padded to whole shards.
TEST(PowerSgd, SendsTheBytesOfTheFactors) {
  over(2, [](const comm::Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(64, 96), torch::nn::Linear(96, 32));
    Options options;
    options.grad_compression = GradCompression::powersgd;
    for (const int rank : {1, 2}) {
      options.power_sgd = {.rank = rank, .warm_up_steps = 0};
      const DataParallel engine(net, group, options);
      EXPECT_EQ(engine.traveling_grad_bytes(), 4 * (rank * (96 + 64) + rank * (32 + 96) + 96 + 32));
    }
  });
}

TEST(PowerSgd, EqualsThePlainGradientAtFullRank) {
  for (const char* net : {"mlp", "tied", "odd32"}) {
    Case run = compressed(net, 3, 0, GradCompression::powersgd);
    run.options.optimizer = SGD{.lr = 0.05};
    run.options.power_sgd = {.rank = 64, .warm_up_steps = 0, .least_saving = 0};
    const Result full = train(run);
    run.options.grad_compression = GradCompression::none;
    EXPECT_LT(distance(full, train(run)), 2e-5) << net;
  }
}

TEST(PowerSgd, DoesNotCompressWarmUpSteps) {
  Case run = compressed("mlp", 2, 0, GradCompression::powersgd);
  run.options.power_sgd = {.rank = 1, .warm_up_steps = 3, .least_saving = 1};
  const Result warm = train(run);
  run.steps = 4;
  const Result beyond = train(run);
  run.options.grad_compression = GradCompression::none;
  const Result plain = train(run);
  EXPECT_NE(beyond.hash, plain.hash);
  EXPECT_EQ(beyond.losses, plain.losses);  // computed before the first compressed update
  run.steps = 3;
  EXPECT_EQ(warm.hash, train(run).hash);
}

// Errors are fed back: with the same gradient in every step, the sum of the results after T steps
// is T gradients minus the current error, which stays bounded.
TEST(PowerSgd, FeedsErrorsBackIntoLaterSteps) {
  over(3, [](const comm::Group& group) {
    auto net = std::make_shared<Mlp>();
    net->initialize(7);
    Options options;
    options.grad_compression = GradCompression::powersgd;
    options.power_sgd = {.rank = 1, .warm_up_steps = 0, .least_saving = 0};
    options.optimizer = SGD{.lr = 1e-30};  // parameters and gradients stay constant
    Engine engine(net, group, options);
    const Batch batch = net->batch(static_cast<std::uint64_t>(group.rank()));
    const auto gradient = [&](int index) { return net->parameters()[index].grad().clone(); };
    std::vector<at::Tensor> exact;
    {
      Mlp other;
      other.initialize(7);
      other.loss(batch).backward();
      for (const at::Tensor& p : other.parameters()) {
        exact.push_back(p.grad() / group.size());
        group.all_reduce(exact.back()).wait();
      }
    }
    constexpr int kSteps = 60;
    std::vector<at::Tensor> sums;
    for (int step = 1; step <= kSteps; ++step) {
      engine.backward(forward_loss(engine, *net, batch));
      engine.finish_reduction();
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const at::Tensor grad = gradient(static_cast<int>(i));
        if (step == 1) sums.push_back(at::zeros_like(grad));
        sums[i].add_(grad);
      }
      engine.step();
    }
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double size = exact[i].norm().item<double>();
      const double owed = (sums[i] - kSteps * exact[i]).norm().item<double>();
      EXPECT_LT(owed, 12 * size) << i;  // of 60: one step alone would drop most of it
      if (exact[i].dim() == 1) {
        EXPECT_LT(owed, 1e-4 * size * kSteps) << i;
      }
    }
  });
}

TEST(PowerSgd, OrthonormalizesColumns) {
  for (const std::int64_t rows : {1, 5, 40}) {
    for (const std::int64_t rank : {1, 3, 5}) {
      at::Tensor x = numbers({rows, rank}, 3);
      if (rank > 1) x.select(1, 1).copy_(x.select(1, 0) * 2);  // linearly dependent
      const Redraw redraw{1, 2};
      orthonormalize(x, &redraw);
      const at::Tensor product = x.t().mm(x);
      const std::int64_t full = std::min(rows, rank);
      EXPECT_NEAR(product.trace().item<double>(), static_cast<double>(full), 1e-5);
      EXPECT_LT((product - at::diag(product.diagonal())).abs().max().item<double>(), 1e-5);
    }
  }
  at::Tensor bad = at::full({3, 2}, std::nanf(""));
  orthonormalize(bad, nullptr);
  EXPECT_TRUE(bad.isnan().all().item<bool>());
}

// A discarded or non-finite step and a resume reset the state.
TEST(PowerSgd, ResetsErrorsOfDiscardedSteps) {
  for (const std::string how : {"skip", "discard", "resume"}) {
    std::vector<std::uint64_t> hashes;
    for (const bool disturbed : {false, true}) {
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Mlp>();
        net->initialize(7);
        Options options;
        options.grad_compression = GradCompression::powersgd;
        options.power_sgd = {.rank = 1, .warm_up_steps = 0, .least_saving = 0};
        options.on_non_finite = OnNonFinite::skip;
        Engine engine(net, group, options);
        const Batch batch = net->batch(static_cast<std::uint64_t>(group.rank()));
        if (disturbed && how == "resume") {
          engine.backward(forward_loss(engine, *net, batch));
          engine.finish_reduction();
          engine.discard();
          engine.resume(engine.progress());
        } else if (disturbed) {
          const double factor = how == "skip" ? NAN : 1;
          engine.backward(forward_loss(engine, *net, batch) * factor);
          if (how == "skip") {
            EXPECT_TRUE(engine.step().skipped);
          } else {
            engine.discard();
          }
        }
        for (int step = 0; step < 3; ++step) {
          engine.backward(forward_loss(engine, *net, batch));
          engine.step();
        }
        const std::uint64_t hash = engine.params_hash();
        if (group.rank() == 0) hashes.push_back(hash);
      });
    }
    EXPECT_EQ(hashes[0], hashes[1]) << how;
  }
}

// Sums of different first factors would be wrong.
TEST(PowerSgd, RejectsDifferentSeedsOnRanks) {
  over(2, [](const comm::Group& group) {
    Options options;
    options.seed = static_cast<std::uint64_t>(group.rank());
    const auto told = [&] {
      try {
        Engine(std::make_shared<Mlp>(), group, options);
        return std::string();
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
    };
    EXPECT_EQ(told(), "");  // no random numbers are used
    options.grad_compression = GradCompression::powersgd;
    const std::string factors = told();
    EXPECT_NE(factors.find("seed 1"), std::string::npos) << factors;
    options.grad_compression = GradCompression::none;
    options.layout = parse_state_layout("bf16-nomaster");  // rounds stochastically
    const std::string noise = told();
    EXPECT_NE(noise.find("seed 1"), std::string::npos) << noise;
  });
}

TEST(PowerSgd, RejectsUnsupportedOptions) {
  const auto refused = [](const std::function<void(Options&)>& change) {
    Options options;
    options.grad_compression = GradCompression::powersgd;
    change(options);
    EXPECT_THROW(Engine(std::make_shared<Mlp>(), comm::Group(), options), UsageError);
  };
  for (int stage = 1; stage < 4; ++stage) {
    refused([&](Options& o) { o.stage = stage; });
  }
  refused([](Options& o) { o.reduce = ReducePolicy::each; });
  refused([](Options& o) { o.layout = parse_state_layout("bf16"); });
  refused([](Options& o) { o.power_sgd.rank = 0; });
  refused([](Options& o) { o.power_sgd.warm_up_steps = -1; });
  refused([](Options& o) { o.power_sgd.least_saving = NAN; });
}

}  // namespace
}  // namespace tessera::zero::test
