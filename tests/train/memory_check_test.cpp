#include "tessera/train/memory_check.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/text.h"

namespace tessera::train {
namespace {

struct MemoryCase {
  RunConfig config;
  int ranks;
};
MemoryCase on(int ranks, const std::vector<std::pair<std::string, std::string>>& given) {
  MemoryCase out{{}, ranks};
  for (const auto& [name, text] : given) set(out.config, field(name), text);
  return out;
}
std::int64_t need(const MemoryCase& c) {
  return need_on_host(c.config, resolve(c.config, c.ranks), c.ranks);
}
std::string refusal(const MemoryCase& c, std::int64_t free) {
  try {
    check_host_memory(c.config, resolve(c.config, c.ranks), c.ranks, free, "a host");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}
TEST(MemoryCheck, TrainingNeedsStateAndActivationsOfAllRanks) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const MemoryCase c = on(2, {{"zero", stage}});
    const planner::RunPlan one = plan(c.config, resolve(c.config, 2));
    EXPECT_EQ(need(c), 2 * (one.state() + one.activations)) << stage;
  }
  // Shared shards are counted once: the parameters of all ranks are one model (without padding
  // here).
  const MemoryCase sharded = on(2, {{"zero", "3"}});
  const planner::RunPlan one = plan(sharded.config, resolve(sharded.config, 2));
  EXPECT_EQ(2 * one.params, 4 * find_model_shape("gpt-tiny").params());
  // Ranks with GPUs need device memory instead.
  EXPECT_EQ(need(on(2, {{"device", "cuda"}})), 0);
}

TEST(MemoryCheck, RejectsOnlyRunsThatCannotFit) {
  const MemoryCase c = on(2, {});
  const std::int64_t least = need(c);
  EXPECT_EQ(refusal(c, least), "");
  const std::string said = refusal(c, least - 1);
  EXPECT_TRUE(contains(said, "2 ranks need at least")) << said;
  EXPECT_TRUE(contains(said, "of a host are free")) << said;
  EXPECT_TRUE(contains(said, "--force")) << said;
  EXPECT_EQ(refusal(on(2, {{"force", "true"}}), 0), "");
}

TEST(MemoryCheck, InferenceNeedsParametersAndTheActivationsOfABatch) {
  const ModelShape shape = find_model_shape("gpt-tiny");
  const std::int64_t params = 4 * shape.params();
  EXPECT_EQ(need_of_inference(shape, {}), params);
  // A residual stream, a norm and the MLP's inner width, in fp32.
  const std::int64_t token = 4 * (2 * shape.hidden + shape.ffn);
  EXPECT_EQ(need_of_inference(shape, {.tokens = 1000}), params + 1000 * token);
  EXPECT_EQ(need_of_inference(shape, {.axes = "tp=2,pp=2", .element_bytes = 2, .cache = 77}),
            params / 8 + 77);
  // Saturates instead of overflowing.
  EXPECT_GT(need_of_inference(shape, {.tokens = std::int64_t{1} << 60}), std::int64_t{1} << 62);
  EXPECT_NO_THROW(check_inference_memory(100, 2, 200, "a host", "less"));
  const std::string said =
      error_of([] { check_inference_memory(101, 2, 200, "a host", "a smaller --batch"); });
  EXPECT_TRUE(contains(said, "each of 2 ranks needs at least 101 B")) << said;
  EXPECT_TRUE(contains(said, "for parameters, activations and the cache")) << said;
  EXPECT_TRUE(contains(said, "200 B of a host are free. Use a smaller --batch. --force")) << said;
}

TEST(MemoryCheck, SuggestsTheLargestModelThatFits) {
  const std::string said = refusal(on(2, {{"model", "llama3-70b"}}), 20'000'000'000);
  EXPECT_TRUE(contains(said, "20 GB of a host are free")) << said;
  EXPECT_TRUE(contains(said, "a smaller --model")) << said;
  // The suggested model is accepted, and the next larger one is rejected.
  const std::size_t at = said.find("such as ");
  ASSERT_NE(at, std::string::npos) << said;
  const std::string name = said.substr(at + 8, said.find(',', at) - at - 8);
  EXPECT_EQ(refusal(on(2, {{"model", name}}), 20'000'000'000), "");
  EXPECT_NE(refusal(on(2, {{"model", "gpt2-xl"}}), 20'000'000'000), "");
  // 70.6e9 parameters of 4 + 4 + 8 bytes, on two ranks.
  EXPECT_TRUE(contains(said, " TB for state and activations")) << said;
}

// The suggested flags are accepted.
TEST(MemoryCheck, SuggestedFlagsFit) {
  const std::vector<std::pair<std::string, std::string>> large = {{"micro-batch", "256"}};
  MemoryCase c = on(2, large);
  const std::int64_t free = need(c) / 2;
  const std::string said = refusal(c, free);
  ASSERT_TRUE(contains(said, "--micro-batch ")) << said;
  const std::int64_t batch = std::stoll(said.substr(said.find("--micro-batch ") + 14));
  EXPECT_GT(batch, 0);
  EXPECT_LT(batch, 256);
  c.config.micro_batch = batch;
  EXPECT_EQ(refusal(c, free), "");
  EXPECT_TRUE(contains(said, "--recompute")) << said;
}

TEST(MemoryCheck, DevicesHaveTheirOwnCheck) {
  const MemoryCase c = on(2, {{"device", "cuda"}, {"pp", "2"}});
  const Resolved resolved = resolve(c.config, 2);
  const std::int64_t least = need_on_device(c.config, resolved);
  EXPECT_LT(least, need(on(2, {{"pp", "2"}})));
  EXPECT_NO_THROW(check_device_memory(c.config, resolved, least, "cuda:0"));
  EXPECT_THROW(check_device_memory(c.config, resolved, least - 1, "cuda:0"), UsageError);
}

}  // namespace
}  // namespace tessera::train
