#include "tessera/dashboard/runs.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tessera/core/text.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::dashboard {
namespace {

namespace fs = std::filesystem;

class Runs : public ::testing::Test {
 protected:
  void append(const std::string& text, const char* name = "a.jsonl") const {
    std::ofstream(folder / name, std::ios::app) << text;
  }

  const TemporaryFolder temporary_;
  const fs::path folder = temporary_.path;
};

TEST_F(Runs, ReadsEachLineOfAGrowingFileOnce) {
  LineTail tail((folder / "a.jsonl").string());
  std::vector<std::string> lines;
  int begun_again = 0;
  const LineTail::Listener listener{[&](std::string_view line) { lines.emplace_back(line); },
                                    [&] { ++begun_again; }};
  const auto read = [&] {
    lines.clear();
    while (tail.read(7, listener)) {
    }
    return join(lines, "|");
  };
  EXPECT_EQ(read(), "");  // does not exist yet
  append("one\ntw");
  EXPECT_EQ(read(), "one");
  append("o\n\nthree\n");
  EXPECT_EQ(read(), "two|three");
  EXPECT_EQ(read(), "");
  // Truncated by a new run.
  std::ofstream(folder / "a.jsonl") << "new\n";
  EXPECT_EQ(read(), "new");
  EXPECT_EQ(begun_again, 1);
  // Rotated: the old file is read to its end, which may be written after the rename.
  append("last of old\n");
  fs::rename(folder / "a.jsonl", folder / "a.jsonl.1");
  std::ofstream(folder / "a.jsonl.1", std::ios::app) << "half of old";
  append("first of next\n");
  EXPECT_EQ(read(), "last of old|half of old|first of next");
  EXPECT_EQ(begun_again, 2);
}

TEST_F(Runs, ListsTheRunsOfAFolderWithTheirStates) {
  fs::create_directories(folder / "deep");
  append(
      "{\"step\":1,\"loss\":3,\"start\":{\"run\":{\"model\":\"gpt-tiny\"},\"steps\":2,\"time\":1}}"
      "\n");
  append("{\"step\":1}\n{\"step\":2}\n{\"summary\":{\"interrupted\":true,\"run\":{}}}\n",
         "deep/b.jsonl");
  append("{\"step\":1}\n", "ignored.txt");
  RunStore store({folder.string()}, 0.01);
  store.catch_up();
  const Json list = store.list();
  ASSERT_EQ(list.size(), 2U);
  for (const Json& run : list) {
    const bool first = run["name"] == "a.jsonl";
    EXPECT_EQ(run["name"], first ? "a.jsonl" : "deep/b.jsonl");
    EXPECT_EQ(run["state"], first ? "running" : "stopped");
    EXPECT_EQ(run["steps"], first ? 1 : 2);
    if (first) {
      EXPECT_EQ(run["config"]["model"], "gpt-tiny");
    }
  }
  EXPECT_EQ(store.run("../a.jsonl", 10, 0).status, 404);
  EXPECT_EQ(store.trace(list[0]["id"]).status, 404);
}

TEST_F(Runs, DownsamplesFromAStep) {
  std::string text;
  for (int step = 1; step <= 5000; ++step) {
    text += str("{\"step\":", step, ",\"loss\":", step == 4321 ? 99 : 1, ",\"step_s\":0.5}\n");
  }
  append(text);
  RunStore store({(folder / "a.jsonl").string()}, 0.01);
  store.catch_up();
  const std::string id = store.list()[0]["id"];
  const Json run = Json::parse(store.run(id, 100, 0).body);
  EXPECT_EQ(run["count"], 5000);
  EXPECT_LE(run["steps"].size(), 5000U);
  EXPECT_EQ(run["loss"].size(), 100U);
  EXPECT_NE(std::find(run["loss"].begin(), run["loss"].end(), 99.0), run["loss"].end());
  EXPECT_EQ(run["phases"][0]["step_s"], 0.5);
  EXPECT_EQ(Json::parse(store.run(id, 100, 4991).body)["loss"].size(), 10U);
}

TEST_F(Runs, ReturnsTheExpertsOfOneLayerOrOfAll) {
  append(
      "{\"step\":1,\"experts\":[{\"layer\":\"blocks.0.experts\",\"tokens\":[3,1]},"
      "{\"layer\":\"blocks.1.experts\",\"tokens\":[2,2]}]}\n");
  RunStore store({(folder / "a.jsonl").string()}, 0.01);
  store.catch_up();
  const std::string id = store.list()[0]["id"];
  const auto experts_of = [&](const std::string& layer) {
    return Json::parse(store.run(id, 100, 0, layer).body)["experts"];
  };
  EXPECT_EQ(experts_of("")["tokens"], Json::parse("[[5.0], [3.0]]"));
  EXPECT_EQ(experts_of("blocks.1.experts")["tokens"], Json::parse("[[2.0], [2.0]]"));
  EXPECT_FALSE(experts_of("blocks.2.experts").contains("tokens"));
  EXPECT_EQ(experts_of("blocks.2.experts")["layers"].size(), 2U);
}

Json run_of(const RunStore& store) {
  return Json::parse(store.run(store.list()[0]["id"], 10, 0).body);
}

TEST_F(Runs, ReportsPhasesOfEveryRankAndSlowRanks) {
  const std::string ranks = R"("ranks":{"forward_s":[1,3],"step_s":[4,4]})";
  const std::string slow = R"("slow_ranks":[{"rank":1,"phase":"forward","factor":1.5}])";
  append("{\"step\":1,\"start\":{},\"forward_s\":9}\n");
  RunStore store({(folder / "a.jsonl").string()}, 1000);
  store.catch_up();
  EXPECT_EQ(run_of(store)["phases"], Json::parse(R"([{"rank":0,"forward_s":9.0}])"));
  append(str("{\"step\":2,", ranks, ",", slow, "}\n{\"step\":3,\"forward_s\":1}\n"));
  store.catch_up();
  const Json rows =
      Json::parse(R"([{"rank":0,"forward_s":1,"step_s":4},{"rank":1,"forward_s":3,"step_s":4}])");
  EXPECT_EQ(run_of(store)["phases"], rows);
  EXPECT_EQ(run_of(store)["stragglers"][0]["rank"], 1);
  // The slow rank has recovered.
  append(str("{\"step\":4,", ranks, "}\n"));
  store.catch_up();
  EXPECT_EQ(run_of(store)["stragglers"], Json::array());
  // The summary has the means of the whole run.
  append(str(R"({"summary":{"ranks":{"forward_s":[5]},)", slow, "}}\n"));
  store.catch_up();
  EXPECT_EQ(run_of(store)["phases"], Json::parse(R"([{"rank":0,"forward_s":5}])"));
  EXPECT_EQ(run_of(store)["stragglers"][0]["factor"], 1.5);
  // Restarted, perhaps on other ranks.
  append("{\"step\":5,\"start\":{},\"forward_s\":9}\n");
  store.catch_up();
  EXPECT_EQ(run_of(store)["phases"].size(), 1U);
}

TEST_F(Runs, ReportsAFailureUntilTheRunIsRestarted) {
  append(
      "{\"step\":1}\n"
      R"({"end":{"state":"failed","reason":"rank 1 was killed"}})"
      "\n");
  RunStore store({(folder / "a.jsonl").string()}, 1000);
  store.catch_up();
  EXPECT_EQ(run_of(store)["state"], "failed");
  EXPECT_EQ(run_of(store)["reason"], "rank 1 was killed");
  EXPECT_EQ(run_of(store)["marks"][0]["text"], "failed");
  EXPECT_EQ(store.list()[0]["state"], "failed");
  append("{\"step\":2}\n");
  store.catch_up();
  EXPECT_EQ(run_of(store)["state"], "running");
  EXPECT_FALSE(run_of(store).contains("reason"));
}

TEST_F(Runs, EstimatesTheTimeLeftFromTheLastSteps) {
  append(R"({"step":1,"step_s":90,"start":{"steps":160}})"
         "\n");
  for (int step = 2; step <= 60; ++step) append(str("{\"step\":", step, ",\"step_s\":0.5}\n"));
  RunStore store({(folder / "a.jsonl").string()}, 1000);
  store.catch_up();
  EXPECT_EQ(run_of(store)["eta_s"], 50.0);  // 100 steps
  append("{\"summary\":{}}\n");
  store.catch_up();
  EXPECT_FALSE(run_of(store).contains("eta_s"));
}

TEST_F(Runs, MeasuredPeakIsThatOfAllSteps) {
  append(R"({"step":1,"mem_peak_bytes":10,"start":{"measured":{"memory":{"peak":10,"params":4}}}})"
         "\n"
         R"({"step":2,"mem_peak_bytes":30})"
         "\n"
         R"({"step":3,"mem_peak_bytes":20})"
         "\n");
  RunStore store({(folder / "a.jsonl").string()}, 1000);
  store.catch_up();
  EXPECT_EQ(run_of(store)["memory"], Json::parse(R"({"peak":30.0,"params":4})"));
}

TEST_F(Runs, ShowsSlowRanksAmongVeryManyRanks) {
  Json line = {{"step", 1}, {"slow_ranks", {{{"rank", 900}}, {{"rank", 5000}}, {{"rank", -1}}, 7}}};
  for (int r = 0; r < 1000; ++r) line["ranks"]["forward_s"].push_back(r);
  append(line.dump() + "\n");
  RunStore store({(folder / "a.jsonl").string()}, 1000);
  store.catch_up();
  const Json phases = run_of(store)["phases"];
  ASSERT_EQ(phases.size(), 64U);
  for (std::size_t i = 0; i < 63; ++i) EXPECT_EQ(phases[i]["rank"], i);
  EXPECT_EQ(phases[63], Json::parse(R"({"rank":900,"forward_s":900})"));
}

TEST_F(Runs, IgnoresInvalidRanks) {
  for (const char* bad : {"7", "[]", "{}", R"({"forward_s":3})", R"({"forward_s":["x",null]})"}) {
    fs::remove(folder / "a.jsonl");
    append(str("{\"step\":1,\"ranks\":", bad, ",\"slow_ranks\":{}}\n"));
    RunStore store({(folder / "a.jsonl").string()}, 1000);
    store.catch_up();
    const Json run = run_of(store);
    EXPECT_TRUE(run["stragglers"].empty()) << bad;
    for (const Json& row : run["phases"]) EXPECT_FALSE(row.contains("forward_s")) << bad;
  }
}

TEST_F(Runs, ServesOnlyTraceFiles) {
  const std::string trace = (folder / "trace.json").string();
  append(str("{\"step\":1,\"start\":{\"trace\":\"", trace, "\"}}\n"));
  RunStore store({(folder / "a.jsonl").string()}, 0.01);
  store.catch_up();
  const std::string id = store.list()[0]["id"];
  EXPECT_EQ(store.trace(id).status, 404);
  std::ofstream(trace) << "a secret";
  EXPECT_EQ(store.trace(id).status, 404);
  std::ofstream(trace) << "{\"traceEvents\":[]}";
  EXPECT_EQ(store.trace(id).body, "{\"traceEvents\":[]}");
}

TEST_F(Runs, RefusesAPipeAsRun) {
  const std::string pipe = (folder / "p").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { RunStore store({pipe}); }), "--runs"));
}

}  // namespace
}  // namespace tessera::dashboard
