#include "tessera/planner/score.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

std::vector<ScoredRow> parse(const std::string& text) {
  RunConfig defaults = RunConfig::for_plan();
  defaults.set("vocab", "51200");
  defaults.set("hardware", "a100-80");
  return parse_runs(text, "runs.csv", defaults, built_in());
}

TEST(RunsFile, ColumnsAreSettings) {
  const auto rows = parse(
      "gpus,global_batch,micro-batch,hidden,heads,layers,seq,tp,dp,pp,layout,step_ms\r\n"
      "4,16,4,2048,16,24,1024,1,2,2,\"2,6,12\",410.5\r\n"
      "\n"
      "4,8,1,2048,16,16,1024,1,4,1,,152.25\n");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_DOUBLE_EQ(rows[0].measured, 0.4105);
  EXPECT_EQ(rows[0].question.layout.total(), 20);
  EXPECT_EQ(rows[0].question.micros(), 2);
  EXPECT_EQ(rows[0].question.model.vocab, 51200);
  EXPECT_EQ(rows[1].label, "line 4");
  EXPECT_EQ(rows[1].question.layout.name, "bf16");
  EXPECT_EQ(rows[1].question.hardware.name, "a100-80");
}

TEST(RunsFile, ErrorsNameTheLine) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"dp,tp\n1,1\n", "line 1: there is no column step_ms"},
      {"dpp,step_ms\n1,1\n", "did you mean dp"},
      {"dp,step_ms\n1\n", "line 2: the row has 1 cells, the header 2"},
      {"dp,step_ms\n1,0\n", "line 2: step_ms"},
      {"dp,step_ms\n1,fast\n", "line 2: step_ms"},
      {"dp,step_ms\n1,1\n0,1\n", "line 3: --dp"},
      {"gpus,dp,step_ms\n3,2,1\n", "line 2: --gpus"},
      {"dp,step_ms\n\"1,1\n", "not closed"},
      {"params,step_ms\n1B,5\n", "line 2"},
  };
  for (const auto& [text, expected] : cases) {
    try {
      parse(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("runs.csv, line"), 0U) << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera::planner
