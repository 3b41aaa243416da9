// Warnings for settings without effect.

#include "tessera/train/config_checks.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/text.h"

namespace tessera::train {
namespace {

using Given = std::vector<std::pair<std::string, std::string>>;

std::vector<std::string> idle_of(const Given& given) {
  RunConfig config;
  for (const auto& [name, text] : given) set(config, field(name), text);
  return idle_settings(config, resolve(config, ranks_wanted(config)));
}

struct IdleCase {
  std::string name, value;
  Given acts_with;  // settings that it needs
  Given besides{};  // settings of both runs
};

TEST(IdleSettings, DefaultRunHasNone) { EXPECT_EQ(idle_of({}), std::vector<std::string>()); }

TEST(IdleSettings, NamesSettingsWithoutEffect) {
  const std::vector<IdleCase> cases = {
      {"lora-alpha", "8", {{"lora-rank", "4"}}},
      {"lora-targets", "all", {{"lora-rank", "4"}}},
      {"schedule", "gpipe", {{"pp", "2"}}},
      {"split", "work", {{"pp", "2"}}},
      {"chunks", "2", {{"pp", "2"}, {"schedule", "interleaved"}}},
      {"grad-compression", "bf16", {{"dp", "2"}}, {{"dp", "1"}}},
      {"overlap-grad-reduce", "false", {{"dp", "2"}}, {{"dp", "1"}}},
      {"overlap-param-gather", "false", {{"zero", "2"}}, {{"zero", "3"}}},
      {"prefetch", "false", {{"zero", "3"}}},
      {"keep-params", "true", {{"zero", "3"}}, {{"zero", "2"}}},
      {"gather", "copy", {{"zero", "3"}}},
      {"link-bandwidth", "1GB/s", {{"dp", "2"}}, {{"dp", "1"}}},
      {"link-latency", "20us", {{"dp", "2"}}, {{"dp", "1"}}},
      {"beta1", "0.8", {{"optimizer", "adamw"}}, {{"optimizer", "sgd"}}},
      {"beta2", "0.95", {{"optimizer", "muon"}}, {{"optimizer", "sgd"}}},
      {"eps", "1e-6", {{"optimizer", "muon"}}, {{"optimizer", "lion"}}},
      {"momentum", "0.8", {{"optimizer", "sgd"}}},
      {"min-lr-ratio", "0.2", {{"lr-schedule", "cosine"}}, {{"lr-schedule", "constant"}}},
      {"decay-share", "0.5", {{"lr-schedule", "wsd"}}},
      {"keep-last", "5", {{"save", "runs/a"}}},
      {"save-minutes", "5", {{"save", "runs/a"}}},
      {"save-minutes", "5", {{"save-every", "0"}}, {{"save", "runs/a"}, {"save-every", "9"}}},
      {"keep-every", "100", {{"save", "runs/a"}}},
      {"keep-every", "100", {{"keep-last", "2"}}, {{"save", "runs/a"}, {"keep-last", "0"}}},
      {"async-save", "false", {{"save", "runs/a"}}},
      {"save-retries", "1", {{"save", "runs/a"}}},
      {"trace-steps", "5", {{"trace", "trace.json"}}},
      {"matmul-precision", "high", {{"layout", "fp32"}}, {{"device", "cuda"}, {"layout", "bf16"}}},
      {"last-batch", "pad", {}},
      {"order", "sequential", {}},
      {"documents", "separate", {}},
      {"pack", "none", {}},
  };
  for (const IdleCase& each : cases) {
    Given given = each.besides;
    given.emplace_back(each.name, each.value);
    const std::vector<std::string> lines = idle_of(given);
    ASSERT_EQ(lines.size(), 1u) << each.name;
    RunConfig set_alone;
    set(set_alone, field(each.name), each.value);
    const std::string flag = each.value == "false" ? "--no-" + each.name
                             : each.value == "true"
                                 ? "--" + each.name
                                 : "--" + each.name + " " + get(set_alone, field(each.name));
    EXPECT_TRUE(contains(lines[0], flag + " has no effect: it applies only ")) << lines[0];
    if (each.acts_with.empty()) continue;  // needs files, which this test does not have
    given.insert(given.end(), each.acts_with.begin(), each.acts_with.end());
    EXPECT_EQ(idle_of(given), std::vector<std::string>()) << each.name;
  }
}

TEST(IdleSettings, RejectsCudaGraphsWithoutGpu) {
  RunConfig config;
  config.cuda_graph = CudaGraph::on;
  EXPECT_TRUE(
      contains(error_of([&] { resolve(config, 1); }), "--cuda-graph: got on with --device cpu"));
  config.cuda_graph = CudaGraph::off;
  EXPECT_NO_THROW(resolve(config, 1));
}

TEST(IdleSettings, RejectsFp8WithoutGpu) {
  RunConfig config;
  config.precision = Precision::fp8;
  EXPECT_TRUE(
      contains(error_of([&] { resolve(config, 1); }), "--precision: got fp8 with --device cpu"));
  config.device = Device::cuda;
  config.overlap_tp = true;
  EXPECT_TRUE(contains(error_of([&] { resolve(config, 1); }),
                       "--overlap-tp: products of --precision fp8 are not sent in pieces"));
}

TEST(IdleSettings, RejectsMatmulPrecisionWithoutGpu) {
  RunConfig config;
  config.matmul_precision = MatmulPrecision::high;
  EXPECT_TRUE(contains(error_of([&] { resolve(config, 1); }),
                       "--matmul-precision: got high with --device cpu"));
  config.device = Device::cuda;
  EXPECT_NO_THROW(resolve(config, 1));
}

}  // namespace
}  // namespace tessera::train
