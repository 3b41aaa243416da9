// Answers equal the output of the commands for the same question.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/json.h"
#include "tessera/planner/stages.h"
#include "tests/text.h"

namespace tessera::dashboard {
namespace {

template <typename Made>
Json answer(Made (*make)(const Knowledge&, Ask&), const std::string& body) {
  static const Knowledge known;
  Ask ask(body);
  const Made made = make(known, ask);
  if constexpr (std::is_same_v<Made, Json>)
    return made;
  else
    return Json::parse(made);
}

planner::Question asked(const std::string& body) {
  planner::Settings settings;
  planner::read_json(settings, body);
  return settings.question(planner::Catalogue());
}

TEST(Answers, PlansEqualThoseOfTheCommand) {
  for (const std::string body :
       {R"({"model":"gpt2-xl","dp":8,"zero":1})", R"({"params":"13B","dp":64,"zero":3})",
        R"({"model":"llama2-7b","tp":2,"pp":4,"grad_accum":8,"schedule":"1f1b"})"}) {
    Json got = answer(plan_answer, body);
    EXPECT_TRUE(contains(got["command"].get<std::string>(), "tessera plan --"));
    got.erase("command");
    EXPECT_EQ(got.dump(), planner::to_json(planner::make_plan(asked(body)))) << body;
  }
}

TEST(Answers, StagesWithReplicasEqualThoseOfTheCommand) {
  const std::string body = R"({"params":"7B","dp":64,"dp_replicate":8})";
  const Json got = answer(zero_answer, body);
  EXPECT_EQ(got["command"], "tessera explain zero --params 7B --dp 64 --dp-replicate 8");
  EXPECT_EQ(got["dp_replicate"], 8);
  EXPECT_EQ(got["stages"][3]["copies"], 8.0);
  EXPECT_EQ(got["fits_from_dp"]["3"].get<int>() % 8, 0);
  EXPECT_EQ(got["owners"][8]["first"], 0);  // the first rank of the second replica
  EXPECT_TRUE(contains(got["formula"][3]["text"].get<std::string>(), "2/8 + 2/8 + 12/8"));
}

// A body is parsed like a line of tessera plan --questions: the same settings and errors.
TEST(Answers, ParsesBodiesLikeLinesOfQuestions) {
  const auto of_line = [](const std::string& body) {
    return planner::answer_line({}, planner::Catalogue(), body);
  };
  const auto of_page = [](const std::string& body) -> std::string {
    static const Knowledge known;
    try {
      Ask ask(body);
      return planner::to_json(planner::make_plan(ask.settings().question(known.catalogue)));
    } catch (const Error& error) {
      return planner::error_json(error.what());
    }
  };
  for (const std::string body :
       {R"({})", R"({"zero":1,"dp":8,"zero":3})", R"({"dp":null,"micro-batch":2,"micro_batch":4})",
        R"({"sequence_parallel":true,"tp":2,"price_per_hour":2.5})", R"({"params":7e9,"dp":"8"})",
        R"({"zzz":1,"dp":"many"})", R"({"zero":[],"aaa":1})", R"({"dp":{"a":1}})",
        R"({"dp":9223372036854775808})", R"({"seq":1e3,"dp":-1})"}) {
    EXPECT_EQ(of_page(body), of_line(body)) << body;
  }
}

TEST(Answers, StagesReportTheSmallestDpThatFits) {
  const Json got = answer(zero_answer, R"({"params":7e9,"dp":8})");
  EXPECT_EQ(got["stages"].size(), 4U);
  for (int stage = 0; stage <= 3; ++stage) {
    const Json from = got["fits_from_dp"][std::to_string(stage)];
    if (from.is_null()) continue;
    // It fits there, but not with one rank less.
    const auto fits = [&](int dp) {
      Json body = {{"params", 7e9}, {"dp", dp}};
      return answer(zero_answer, body.dump())["stages"][static_cast<std::size_t>(stage)]["fits"];
    };
    EXPECT_EQ(fits(from.get<int>()), true) << stage;
    if (from > 1) {
      EXPECT_EQ(fits(from.get<int>() - 1), false) << stage;
    }
  }
  EXPECT_TRUE(contains(got["formula"][1]["text"].get<std::string>(), "(2 + 2 + 12/8) B = 38.5 GB"));
}

TEST(Answers, SchedulesWithoutHopsEqualThoseOfTheSimulator) {
  const Json plain = answer(schedule_answer, R"({"pp":4,"micros":8,"forward":1,"backward":2})");
  EXPECT_DOUBLE_EQ(plain["bubble"].get<double>(), 3.0 / 11);
  const Json hops =
      answer(schedule_answer, R"({"pp":4,"micros":8,"forward":1,"backward":2,"hop":1e-9})");
  EXPECT_NEAR(plain["step"].get<double>(), hops["step"].get<double>(), 1e-6);
  for (std::size_t r = 0; r < 4; ++r)
    EXPECT_EQ(hops["actions"][r].size(), plain["actions"][r].size());
}

TEST(Answers, ScalingStopsPayingWhenADoublingGainsLittle) {
  const Json got = answer(scaling_answer, R"({"model":"gpt2-xl","overhead":1,"max_dp":64})");
  EXPECT_EQ(got["dp"], Json::parse("[1,2,4,8,16,32,64]"));
  EXPECT_DOUBLE_EQ(got["simple"]["efficiency"][3].get<double>(), 0.25);
  EXPECT_EQ(got["simple_stops_paying_at"], 1);  // 2 ranks at half the efficiency gain nothing
  const Json none = answer(scaling_answer, R"({"model":"gpt2-xl","overhead":0,"max_dp":64})");
  EXPECT_TRUE(none["simple_stops_paying_at"].is_null());
}

TEST(Answers, CommandsAreSafeToPaste) {
  EXPECT_EQ(shell_word("gpt2-xl"), "gpt2-xl");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("a'; rm -rf /"), "'a'\\''; rm -rf /'");
  EXPECT_EQ(shell_word(""), "''");
  const Json body = {{"model", "$(reboot)"}, {"overlap_grad_reduce", false}, {"dp", 8}};
  const Ask ask(body.dump());
  EXPECT_EQ(ask.command("plan"),
            "tessera plan --model '$(reboot)' --no-overlap-grad-reduce --dp 8");
}

}  // namespace
}  // namespace tessera::dashboard
