#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/processes.h"
#include "tests/temporary_folder.h"

namespace tessera::cli {

// Runs of `tessera train`, with a folder for their output.
class Train : public ::testing::Test {
 protected:
  using Json = nlohmann::json;
  using Words = std::vector<std::string>;

  void SetUp() override { metrics = folder / "metrics.jsonl"; }
  static Outcome tessera(Words words) {
    words.insert(words.begin(), {TESSERA_PROGRAM, "train"});
    return outcome_of(words);
  }

  // A model of a few thousand parameters whose sizes do not divide evenly, and three steps.
  static Words small(Words more) {
    Words words = {"--layers", "2",  "--hidden",  "36", "--heads",       "3",
                   "--vocab",  "17", "--seq",     "20", "--micro-batch", "3",
                   "--steps",  "3",  "--samples", "1",  "--threads",     "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Runs it and returns the lines of its metrics.
  std::vector<Json> run(Words words) const {
    words.insert(words.end(), {"--metrics", metrics.string()});
    const Outcome outcome = tessera(words);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    std::vector<Json> lines;
    std::ifstream in(metrics);
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  Json summary(const Words& words) const {
    const std::vector<Json> lines = run(words);
    return lines.empty() ? Json() : lines.back().at("summary");
  }

  static void expect_the_plan_was_the_run(const Json& summary, const std::string& what) {
    const Json &predicted = summary.at("predicted"), &measured = summary.at("measured");
    EXPECT_EQ(predicted.at("sent_bytes"), measured.at("sent_bytes")) << what;
    for (const auto& [category, share] : {std::pair<const char*, double>{"params", 0.01},
                                          {"grads", 0.01},
                                          {"optimizer", 0.01},
                                          {"activations", 0.03}}) {
      const double want = predicted.at("memory").at(category).get<double>();
      const double got = measured.at("memory").at(category).get<double>();
      // Each of the engine's buffers is rounded up to 64 bytes.
      EXPECT_NEAR(got, want, share * want + 1024) << what << ": " << category;
    }
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder = temporary_.path;
  std::filesystem::path metrics;
};

}  // namespace tessera::cli
