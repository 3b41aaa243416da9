// Utilization of published runs, compared with predictions that use one set of constants for each
// software and device.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> all;
  std::stringstream text(line);
  for (std::string cell; std::getline(text, cell, ',');) all.push_back(cell);
  return all;
}

// Rows of a file: text by column, before and from the first setting.
struct PublishedRuns {
  explicit PublishedRuns(const std::string& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      (head.empty() ? head : rows.emplace_back()) = cells(line);
    }
  }
  RunConfig settings_of(const std::vector<std::string>& row, std::size_t first) const {
    RunConfig settings = RunConfig::for_plan();
    for (std::size_t i = first; i < row.size(); ++i) {
      if (!row[i].empty()) settings.set(head[i], row[i]);
    }
    return settings;
  }
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

TEST(PublishedRuns, UtilizationIsWithinTenPercent) {
  const PublishedRuns runs(TESSERA_PUBLISHED_RUNS "/published_runs.csv");
  const Catalog catalog;
  for (const std::vector<std::string>& row : runs.rows) {
    RunConfig settings = runs.settings_of(row, 3);
    double mfu = 0;
    const bool given = settings.has("micro-batch");
    for (const char* micro : {"1", "2", "4"}) {
      if (!given) settings.set("micro-batch", micro);
      mfu = std::max(mfu, plan_numbers(resolve(look_up(settings, catalog))).mfu);
    }
    const double reported = std::stod(row[2]);
    EXPECT_NEAR(mfu / reported, 1, 0.1) << row[0] << " (" << row[1] << "): " << mfu;
  }
  EXPECT_GE(runs.rows.size(), 15U);
}

// Tokens per second of mixtures of experts. The file states which run is beyond 15% and why.
TEST(PublishedRuns, RatesWithExpertsAreAsClose) {
  const PublishedRuns runs(TESSERA_PUBLISHED_RUNS "/published_expert_runs.csv");
  const Catalog catalog;
  int close = 0;
  for (const std::vector<std::string>& row : runs.rows) {
    const Plan plan = plan_numbers(resolve(look_up(runs.settings_of(row, 4), catalog)));
    const double reported = std::stod(row[2]), within = std::stod(row[3]);
    const double predicted = plan.tokens_per_s / plan.question.world();
    EXPECT_NEAR(predicted / reported, 1, within) << row[0] << " (" << row[1] << "): " << predicted;
    EXPECT_TRUE(plan.question.model.experts.any()) << row[0];
    // The measured step is inside the interval of the prediction.
    const double step = plan.time.step() * predicted / reported;
    EXPECT_GE(step, plan.interval.low) << row[0];
    EXPECT_LE(step, plan.interval.high) << row[0];
    close += within <= 0.15 ? 1 : 0;
  }
  EXPECT_GE(runs.rows.size(), 3U);
  EXPECT_GE(close, 2);
}

// gpt2-xl trained by Megatron-LM on H100s, R1 to R6: milliseconds of a step.
TEST(PublishedRuns, ReferenceStepsAreWithinTenPercent) {
  const Catalog catalog;
  const auto step = [&](int dp, int batch, int accumulation, int zero, bool overlap) {
    RunConfig q = RunConfig::for_plan();
    q.model = find_model_shape("gpt2-xl");
    q.layout = parse_state_layout("bf16-fp32grad");
    q.hardware = catalog.find("h100");
    q.axes.set_dp(dp), q.micro_batch = batch, q.grad_accum = accumulation;
    q.zero = zero, q.overlap_grad_reduce = q.overlap_param_gather = overlap;
    return 1e3 * step_time(resolve(q)).step();
  };
  for (const bool overlap : {false, true}) {
    EXPECT_NEAR(step(1, 1, 1, 0, overlap) / 214, 1, 0.1);    // R1
    EXPECT_NEAR(step(4, 1, 1, 0, overlap) / 244, 1, 0.1);    // R2
    EXPECT_NEAR(step(1, 15, 1, 0, overlap) / 393, 1, 0.1);   // R3
    EXPECT_NEAR(step(1, 15, 4, 0, overlap) / 1470, 1, 0.1);  // R4
    EXPECT_NEAR(step(4, 15, 1, 0, overlap) / 421, 1, 0.1);   // R5
    EXPECT_NEAR(step(4, 15, 1, 1, overlap) / 421, 1, 0.1);   // R6: as R5
    // Ratios: of R4 and R5.
    EXPECT_NEAR(step(1, 15, 4, 0, overlap) / step(1, 15, 1, 0, overlap), 3.74, 0.05);
    EXPECT_NEAR(step(4, 15, 1, 0, overlap) / step(1, 15, 1, 0, overlap), 1.07, 0.05);
    // R8 to R10: constant.
    EXPECT_NEAR(step(8, 16, 1, 1, overlap) / step(2, 16, 1, 1, overlap), 1, 0.05);
  }
  // R2 and R5 took 30 and 28 ms longer than R1 and R3: the duration of an all-reduce of 9.35 GB
  // without overlap, which is Megatron-LM's default.
  EXPECT_NEAR(step(4, 1, 1, 0, false) - step(1, 1, 1, 0, false), 30, 3);
  EXPECT_NEAR(step(4, 15, 1, 0, false) - step(1, 15, 1, 0, false), 28, 3);
  EXPECT_LT(step(4, 1, 1, 0, true) - step(1, 1, 1, 0, true), 0.75 * 30);
}

// gpt2 by PyTorch on an H200 (docs/benchmarks.md, and the 60 and 375 ms of an earlier day).
TEST(PublishedRuns, PyTorchStepsArePredicted) {
  const Catalog catalog;
  const auto step = [&](const char* model, int batch) {
    RunConfig q = RunConfig::for_plan();
    q.model = find_model_shape(model);
    q.hardware = catalog.find("h200");
    q.software = Software::pytorch;
    q.micro_batch = batch;
    return 1e3 * step_time(resolve(q)).step();
  };
  EXPECT_NEAR(step("gpt2-xl", 1), (60 + 81.7) / 2, 12);
  EXPECT_NEAR(step("gpt2-xl", 15), (319.3 + 375) / 2, 28);
  EXPECT_NEAR(step("gpt2-124m", 4) / 21.6, 1, 0.2);
  EXPECT_NEAR(step("gpt2-124m", 32) / 80.1, 1, 0.1);
}

}  // namespace
}  // namespace tessera::planner
