// tessera plan --sweep and the topics of tessera explain as a user runs them.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/answer.h"

namespace tessera::cli {
namespace {

TEST(PlanAnswers, EveryLayoutHasItsName) {
  for (const char* layout : {"bf16", "bf16-fp32grad", "bf16-nomaster", "fp16", "fp32", "2,6,12"}) {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"plan", "--dp", "2"},
                                               {"explain", "zero"},
                                               {"explain", "limits"},
                                               {"explain", "memory"},
                                               {"simulate", "--dp", "2"}}) {
      std::vector<std::string> all = arguments;
      all.insert(all.end(), {"--layout", layout});
      const Answer got = tessera(all);
      EXPECT_EQ(got.status, 0) << layout << " " << got.err;
    }
  }
}

TEST(PlanAnswers, SweepsASetting) {
  const std::string svg = std::filesystem::temp_directory_path() / "tessera-sweep-test.svg";
  const Answer text = tessera({"plan", "--zero", "1", "--sweep", "dp=1..8", "--svg", svg});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "tokens/s")) << text.out;
  std::ifstream file(svg);
  const std::string drawn((std::istreambuf_iterator<char>(file)), {});
  std::filesystem::remove(svg);
  EXPECT_EQ(drawn.rfind("<svg ", 0), 0U);
  EXPECT_TRUE(contains(drawn, "</svg>"));
  const auto json = tessera({"plan", "--zero", "1", "--sweep", "dp=1..8", "--json"}).json();
  ASSERT_EQ(json["sweep"].size(), 4U);
  EXPECT_EQ(json["sweep"][3]["plan"]["question"]["dp"], 8);
  // Reports impossible values, and plans the rest.
  const Answer some = tessera({"plan", "--sweep", "tp=1..8"});
  EXPECT_EQ(some.status, 0);
  EXPECT_TRUE(contains(some.out, "does not divide 25 heads")) << some.out;
}

TEST(PlanAnswers, ComparesZeroStages) {
  const auto json = tessera({"explain", "zero", "--params", "7B", "--dp", "8", "--json"}).json();
  EXPECT_EQ(json["stages"][0]["memory"]["total"], 112'000'000'000);
  EXPECT_EQ(json["stages"][3]["memory"]["total"], 14'000'000'000);
  EXPECT_EQ(json["stages"][3]["copies"], 1.0);
  EXPECT_EQ(json["owners"].size(), 8U);
  const Answer text = tessera({"explain", "zero", "--model", "gpt2-xl", "--dp", "4"});
  for (const char* part : {"DDP", "ZeRO-3", "optimizer step", "copies", "Owned shards"}) {
    EXPECT_TRUE(contains(text.out, part)) << text.out;
  }
}

TEST(PlanAnswers, ComparesKindsOfParallelism) {
  const std::vector<std::string> question = {"explain",   "parallel", "--model",
                                             "llama2-7b", "--gpus",   "8"};
  const Answer text = tessera(question);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "is fastest")) << text.out;
  std::vector<std::string> with = question;
  with.emplace_back("--json");
  const auto json = tessera(with).json();
  ASSERT_EQ(json["ways"].size(), 6U);  // dp, ZeRO-3, cp, tp, pp, best mix
  EXPECT_EQ(json["ways"][2]["name"], "cp 8");
  double fastest = 1e9;
  for (const auto& way : json["ways"]) {
    ASSERT_TRUE(way.contains("plan")) << way;
    EXPECT_EQ(way["plan"]["question"]["global_batch"], 64);
    EXPECT_EQ(way["plan"]["question"]["gpus"], 8);
    if (way["plan"]["fits"] == true) {
      fastest = std::min(fastest, way["plan"]["time"]["step"].get<double>());
    }
  }
  EXPECT_EQ(json["ways"][0]["plan"]["fits"], false);  // 16 bytes of 6.7B parameters
  EXPECT_EQ(json["ways"][5]["plan"]["time"]["step"], fastest);
  const Answer odd = tessera({"explain", "parallel", "--model", "gpt2-xl", "--gpus", "8"});
  EXPECT_TRUE(contains(odd.out, "does not divide 25 heads")) << odd.out;
}

TEST(PlanAnswers, ExplainsContextParallelism) {
  const Answer drawn = tessera({"explain", "context", "--cp", "4", "--seq", "8192"});
  EXPECT_EQ(drawn.status, 0) << drawn.err;
  for (const char* part : {"8 chunks of 1,024", "1, 6", "of 3: 2", "1.75 times as long",
                           "2048 · 2 · 8 · 128 · 2 B = 8.39 MB", "ulysses"}) {
    EXPECT_TRUE(contains(drawn.out, part)) << part << "\n" << drawn.out;
  }
  EXPECT_TRUE(contains(tessera({"explain", "context", "--cp", "1"}).out, "Use --cp 2 or more"));
  const Answer refused = tessera({"explain", "context", "--params", "7B", "--cp", "4"});
  EXPECT_EQ(refused.status, 2);
  // Every report names the axis.
  const std::vector<std::string> run = {"plan", "--model", "llama3-8b", "--seq",  "32768", "--cp",
                                        "4",    "--dp",    "2",         "--zero", "1"};
  const auto with = [&](const char* kind, bool json) {
    std::vector<std::string> words = run;
    words.insert(words.end(), {"--cp-kind", kind});
    if (json) words.emplace_back("--json");
    return tessera(words);
  };
  const Answer text = with("ring", false);
  for (const char* part : {"dp 2 · cp 4 · tp 1 · pp 1", "fused, ring over cp 4",
                           "ring of keys and values", "ring of their gradients"}) {
    EXPECT_TRUE(contains(text.out, part)) << part << "\n" << text.out;
  }
  const auto json = with("ulysses", true).json();
  EXPECT_EQ(json["question"]["cp"], 4);
  EXPECT_EQ(json["question"]["cp_kind"], "ulysses");
  EXPECT_EQ(json["question"]["gpus"], 8);
  EXPECT_GT(json["traffic"]["cp"], 0);
  EXPECT_GT(json["time"]["comm_exposed_by_axis"]["cp"], 0);
}

TEST(PlanAnswers, PrintsTensorParallelismAndLimits) {
  // TP 8 of 96 layers with h 8192 and 2048 tokens in 16 bits sends 22.5 GB.
  const Answer tensor =
      tessera({"explain", "tensor", "--layers", "96", "--hidden", "8192", "--heads", "64", "--seq",
               "2048", "--tp", "8", "--bandwidth", "300GB/s"});
  EXPECT_TRUE(contains(tensor.out, "22.5 GB sent")) << tensor.out << tensor.err;
  EXPECT_TRUE(contains(tessera({"explain", "tensor"}).out, "b·s·h"));
  EXPECT_TRUE(contains(tessera({"explain", "limits", "--memory", "80GB"}).out, "= 5B parameters"));
  const Answer old =
      tessera({"explain", "limits", "--memory", "32GB", "--layout", "2,6,12", "--params", "1B"});
  EXPECT_TRUE(contains(old.out, "= 1.6B parameters")) << old.out;
}

}  // namespace
}  // namespace tessera::cli
