// The command in an answer prints the answer's numbers.

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tessera/dashboard/api.h"
#include "tests/processes.h"

namespace tessera::dashboard {
namespace {

Json answer(Json (*make)(const Knowledge&, Ask&), const std::string& body) {
  static const Knowledge known;
  Ask ask(body);
  return make(known, ask);
}

// Runs the command with --json. These commands need no quoting.
Json printed(const Json& answer) {
  std::istringstream words(answer["command"].get<std::string>() + " --json");
  std::vector<std::string> arguments = {TESSERA_PROGRAM};
  words >> arguments[0];
  EXPECT_EQ(arguments[0], "tessera");
  arguments[0] = TESSERA_PROGRAM;
  for (std::string word; words >> word;) arguments.push_back(word);
  Capture out, err;
  EXPECT_EQ(execute(arguments, out, err), 0) << answer["command"] << "\n" << err.text();
  return Json::parse(out.text());
}

TEST(Commands, AllReduceCommandPrintsTheAnswerForAnyLinks) {
  for (const char* algorithm : {"ring", "tree", "two-level"}) {
    for (const double bandwidth : {100e9, 12345678.0, 25e9 + 1, 7.5}) {
      for (const double latency : {0.0, 5e-6, 1.0 / 3}) {
        Json body = {{"algorithm", algorithm},
                     {"ranks", 6},
                     {"per_node", 3},
                     {"bytes", 1234567},
                     {"latency", latency},
                     {"bandwidth", bandwidth},
                     {"between_bandwidth", bandwidth / 4}};
        Json got = answer(collective_answer, body.dump());
        const Json wanted = printed(got);
        got.erase("command");
        EXPECT_EQ(got, wanted) << body;
        // On one node the command has no links between nodes.
        body.erase("between_bandwidth");
        body["per_node"] = body["ranks"] = 12;  // more than the command takes for a node
        got = answer(collective_answer, body.dump());
        EXPECT_EQ(got["seconds"], printed(got)["seconds"]) << body;
      }
    }
  }
}

TEST(Commands, ScalingCommandPrintsTheAnswerForACustomLink) {
  for (const char* own : {"", R"(,"bandwidth":1e9)", R"(,"bandwidth":2.5e10,"overlap":false)"}) {
    const Json got =
        answer(scaling_answer,
               std::string(R"({"model":"gpt2-xl","hardware":"h100","max_dp":64)") + own + "}");
    const Json wanted = printed(got);
    ASSERT_EQ(wanted["sweep"].size(), got["dp"].size());
    for (std::size_t i = 0; i < got["dp"].size(); ++i) {
      EXPECT_EQ(wanted["sweep"][i]["tokens_per_s"], got["simulated"]["throughput"][i]) << own;
    }
  }
}

}  // namespace
}  // namespace tessera::dashboard
