// Utilisation of runs that others published, against what the planner says, with one set of
// constants per device.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tessera/planner/plan.h"
#include "tessera/planner/settings.h"

namespace tessera::planner {
namespace {

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> all;
  std::stringstream text(line);
  for (std::string cell; std::getline(text, cell, ',');) all.push_back(cell);
  return all;
}

TEST(PublishedRuns, UtilisationIsWithinFifteenPercent) {
  std::ifstream file(TESSERA_PUBLISHED_RUNS);
  ASSERT_TRUE(file) << TESSERA_PUBLISHED_RUNS;
  const Catalogue catalogue;
  std::vector<std::string> head;
  int runs = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> row = cells(line);
    if (head.empty()) {
      head = row;
      continue;
    }
    Settings settings;
    for (std::size_t i = 3; i < row.size(); ++i) {
      if (!row[i].empty()) settings.set(head[i], row[i]);
    }
    double mfu = 0;
    const bool given = settings.has("micro-batch");
    for (const char* micro : {"1", "2", "4"}) {
      if (!given) settings.set("micro-batch", micro);
      mfu = std::max(mfu, plan_numbers(settle(settings.question(catalogue))).mfu);
    }
    const double reported = std::stod(row[2]);
    EXPECT_NEAR(mfu / reported, 1, 0.15) << row[0] << " (" << row[1] << "): " << mfu;
    ++runs;
  }
  EXPECT_GE(runs, 15);
}

// gpt2-xl trained by Megatron-LM on H100s: how much longer a step takes than another.
TEST(PublishedRuns, ReferenceStepsAreInTheReportedRatios) {
  const Catalogue catalogue;
  for (const bool overlap : {false, true}) {
    const auto step = [&](int dp, int batch, int accumulation) {
      Question q;
      q.model = find_model_shape("gpt2-xl");
      q.layout = parse_state_layout("bf16-fp32grad");
      q.hardware = catalogue.find("h100");
      q.axes.set("dp", dp), q.micro_batch = batch, q.grad_accum = accumulation;
      q.overlap_grad_reduce = overlap;
      return step_time(settle(q)).step();
    };
    EXPECT_NEAR(step(4, 1, 1) / step(1, 1, 1), 1.14, 0.05);    // R2 / R1
    EXPECT_NEAR(step(1, 15, 4) / step(1, 15, 1), 3.74, 0.05);  // R4 / R3
    EXPECT_NEAR(step(4, 15, 1) / step(1, 15, 1), 1.07, 0.05);  // R5 / R3
  }
}

}  // namespace
}  // namespace tessera::planner
