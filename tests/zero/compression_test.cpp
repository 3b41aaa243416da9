// Gradients that are sent in fewer bits.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
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

// After 40 steps the loss has fallen, within 2% of the uncompressed one.
TEST(Compression, LossesStayCloseToUncompressedOnes) {
  Case run = compressed("tied", 2, 0, GradCompression::none);
  run.steps = 40;
  run.options.optimizer = AdamW{.lr = 0.01};
  const Result plain = train(run);
  ASSERT_LT(plain.losses.back(), 0.7 * plain.losses.front());
  for (const GradCompression how : {GradCompression::bf16, GradCompression::fp16}) {
    run.options.grad_compression = how;
    const Result result = train(run);
    EXPECT_LT(result.losses.back(), 0.7 * result.losses.front()) << name(how);
    EXPECT_NEAR(result.losses.back() / plain.losses.back(), 1, 0.02) << name(how);
  }
}

}  // namespace
}  // namespace tessera::zero::test
