// Answers equal the output of the commands for the same question.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/json.h"
#include "tessera/planner/stages.h"
#include "tests/text.h"

namespace tessera::dashboard {
namespace {

Json answer(Json (*make)(const Knowledge&, Ask&), const std::string& body) {
  static const Knowledge known;
  Ask ask(body);
  return make(known, ask);
}

planner::RunConfig asked(const std::string& body) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  planner::read_json(settings, body);
  return planner::look_up(settings, planner::Catalog());
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

// Expert parallelism adds no ranks, and its experts are sharded over fewer ranks than the rest.
TEST(Answers, ExpertsAreShardedOverTheRanksThatHoldThem) {
  const std::string body = R"({"model":"mixtral-8x7b","dp":16,"ep":4,"zero":3})";
  const Json got = answer(zero_answer, body);
  const auto formula = got["formula"][3]["text"].get<std::string>();
  EXPECT_TRUE(contains(formula, "(2/16 + 2/16 + 12/16) B + experts ")) << formula;
  EXPECT_TRUE(contains(formula, "(2/4 + 2/4 + 12/4) B = ")) << formula;
  // 16 bytes of each parameter are stored once, over 16 ranks.
  const auto share = got["parameters"].get<double>();
  const Json& memory = got["stages"][3]["memory"];
  const auto state = memory["params"].get<double>() + memory["grads"].get<double>() +
                     memory["optimizer"].get<double>();
  EXPECT_NEAR(state, share, 0.01 * share);
  EXPECT_EQ(got["fits_from_dp"]["3"].get<int>() % 4, 0);
  std::string mesh;
  const Json questions = answer(questions_answer, body);
  for (const Json& question : questions["questions"]) {
    if (question["id"] == "mesh") mesh = question["explanation"];
  }
  EXPECT_EQ(mesh, "16 × 1 × 1 = 16.");
}

TEST(Answers, StagesSendAlongEveryAxis) {
  const Json plan =
      answer(plan_answer, R"({"model":"llama2-7b","dp":8,"tp":2,"pp":2,"zero":2})")["traffic"];
  const Json zero = answer(zero_answer, R"({"model":"llama2-7b","dp":8,"tp":2,"pp":2})");
  const Json& sent = zero["stages"][2]["sent_by_axis"];
  for (const char* axis : {"dp", "dp_replicate", "tp", "pp", "total"}) {
    EXPECT_EQ(sent[axis], plan[axis]) << axis;
  }
  EXPECT_GT(sent["tp"], 0);
  EXPECT_GT(sent["pp"], 0);
  EXPECT_EQ(zero["seq"], 4096);
  const Json sized = answer(zero_answer, R"({"params":"7B","dp":8,"tp":2})");
  EXPECT_TRUE(sized["stages"][2]["sent_by_axis"]["tp"].is_null());  // activations are unknown
  EXPECT_EQ(sized["stages"][2]["sent_by_axis"]["pp"], 0);
  EXPECT_TRUE(sized["seq"].is_null());
}

TEST(Answers, ContextParallelismIsAnAxisOfEveryAnswer) {
  const std::string run =
      R"({"model":"llama3-8b","dp":2,"cp":4,"cp_kind":"ring","seq":32768,"zero":2})";
  const Json plan = answer(plan_answer, run);
  EXPECT_EQ(plan["question"]["cp"], 4);
  EXPECT_EQ(plan["command"],
            "tessera plan --model llama3-8b --dp 2 --cp 4 --cp-kind ring --seq 32768 --zero 2");
  const Json zero = answer(zero_answer, R"({"model":"llama3-8b","dp":2,"cp":4,"seq":32768})");
  EXPECT_EQ(zero["cp"], 4);
  EXPECT_EQ(zero["owners"].size(), 8U);
  EXPECT_EQ(zero["owners"][5]["dp_rank"], 1);
  EXPECT_EQ(zero["owners"][5]["cp_rank"], 1);
  EXPECT_GT(zero["stages"][2]["sent_by_axis"]["cp"], 0);
  EXPECT_EQ(zero["stages"][0]["copies"], 8.0);
  const Json simulated = answer(simulate_answer, run);
  EXPECT_NEAR(simulated["time"]["cp"].get<double>(),
              plan["time"]["comm_exposed_by_axis"]["cp"].get<double>(), 1e-9);
  bool listed = false;
  static const Knowledge known;
  Ask ask("");
  const Json axes = about_answer(known, ask)["axes"];
  for (const Json& axis : axes) listed = listed || axis == "cp";
  EXPECT_TRUE(listed);
}

TEST(Answers, ContextHasTheKeysAndTheWorkOfEachRank) {
  const std::string run = R"("model":"llama3-8b","dp":2,"cp":4,"seq":32768,"zero":2)";
  const Json got = answer(context_answer, "{" + run + "}");
  EXPECT_EQ(got["command"],
            "tessera explain context --model llama3-8b --dp 2 --cp 4 --seq 32768 --zero 2");
  EXPECT_EQ(got["kind"], "ulysses");
  EXPECT_EQ(got["chunk_tokens"], 4096);
  EXPECT_EQ(got["owners"], Json({{0, 3, 2, 1}, {1, 0, 3, 2}, {2, 1, 0, 3}, {3, 2, 1, 0}}));
  EXPECT_EQ(got["zigzag"]["chunks"], Json({{0, 7}, {1, 6}, {2, 5}, {3, 4}}));
  EXPECT_EQ(got["zigzag"]["total"], Json({8.0, 8.0, 8.0, 8.0}));
  EXPECT_EQ(got["in_order"]["total"], Json({2.0, 6.0, 10.0, 14.0}));
  EXPECT_EQ(got["in_order"]["work"][1], Json({2.0, 4.0, 0.0, 0.0}));
  EXPECT_EQ(got["slowdown"], 1.75);
  for (const Json& kind : got["kinds"]) {
    const Json plan = answer(
        plan_answer, "{" + run + R"(,"cp_kind":")" + kind["kind"].get<std::string>() + R"("})");
    EXPECT_EQ(kind["memory"], plan["memory"]);
    EXPECT_EQ(kind["fits"], plan["fits"]);
    EXPECT_EQ(kind["sent_per_step"], plan["traffic"]["cp"]);
    EXPECT_EQ(kind["waiting"], plan["time"]["comm_exposed_by_axis"]["cp"]);
    EXPECT_EQ(kind["step"], plan["time"]["step"]);
    const double layers = 32;
    EXPECT_EQ(kind["sent"]["total"].get<double>() * layers, plan["traffic"]["cp"]);
  }
  // Three messages of 8,192 tokens' keys and values of 8 heads of width 128, 2 bytes each.
  EXPECT_EQ(got["kinds"][0]["message"], 8192 * 2 * 8 * 128 * 2);
  EXPECT_EQ(got["kinds"][0]["sent"]["forward"], 3 * 8192 * 2 * 8 * 128 * 2);
  const Json whole =
      answer(plan_answer, R"({"model":"llama3-8b","dp":2,"seq":32768,"zero":2})")["memory"];
  EXPECT_EQ(got["without_cp"]["memory"], whole);
}

// Without cp there are fewer ranks than ep, so the comparison has as much ep as they allow.
TEST(Answers, ContextComparesModelsWithExpertsWithoutCp) {
  const Json got = answer(context_answer,
                          R"({"model":"mixtral-8x7b","dp":2,"cp":4,"ep":8,"seq":32768,"zero":2})");
  const Json whole = answer(
      plan_answer, R"({"model":"mixtral-8x7b","dp":2,"ep":2,"seq":32768,"zero":2})")["memory"];
  EXPECT_EQ(got["without_cp"]["memory"], whole);
}

TEST(Answers, ContextReportsImpossibleKindsAndTheirLimits) {
  const Json three = answer(context_answer, R"({"model":"llama3-8b","cp":3,"seq":1000})");
  EXPECT_EQ(three["padded"], 1002);
  EXPECT_FALSE(three["kinds"][0].contains("error"));
  EXPECT_TRUE(contains(three["kinds"][1]["error"].get<std::string>(), "must divide the 32 heads"));
  EXPECT_FALSE(three["kinds"][1].contains("memory"));
  EXPECT_EQ(answer(context_answer, R"({})")["cp"], 4);  // as the command without settings
  EXPECT_EQ(answer(context_answer, R"({"cp":1})")["owners"], Json::array({Json::array({0})}));
  const auto refusal = [](const std::string& body) {
    return error_of([&] { answer(context_answer, body); });
  };
  EXPECT_TRUE(contains(refusal(R"({"cp":65})"), "at most 64 on this page"));
  EXPECT_TRUE(contains(refusal(R"({"params":"7B","cp":4})"), "does not define heads"));
}

TEST(Answers, SchedulesCountHeldActivationsInMicroBatches) {
  const Json one = answer(schedule_answer, R"({"schedule":"interleaved","chunks":2})");
  EXPECT_EQ(one["in_flight"], Json({11, 9, 7, 5}));
  EXPECT_EQ(one["held_micro_batches"], Json({5.5, 4.5, 3.5, 2.5}));
  EXPECT_EQ(answer(schedule_answer, R"({"schedule":"1f1b"})")["held_micro_batches"],
            Json({4.0, 3.0, 2.0, 1.0}));
}

// A body is parsed like a line of tessera plan --questions: the same settings and errors.
TEST(Answers, ParsesBodiesLikeLinesOfQuestions) {
  const auto of_line = [](const std::string& body) {
    return planner::answer_line(planner::RunConfig::for_plan(), planner::Catalog(), body);
  };
  const auto of_page = [](const std::string& body) -> std::string {
    static const Knowledge known;
    try {
      Ask ask(body);
      return planner::to_json(planner::make_plan(planner::look_up(ask.settings(), known.catalog)));
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

TEST(Answers, ScalingHasARowForTheGivenDp) {
  const Json got = answer(scaling_answer, R"({"model":"gpt2-xl","max_dp":16,"dp":12})");
  EXPECT_EQ(got["dp"], Json::parse("[1,2,4,8,12,16]"));
  EXPECT_TRUE(contains(got["command"].get<std::string>(), "--sweep dp=1..16,12")) << got["command"];
}

// Settings of a found plan, sent alone, plan it again.
TEST(Answers, SettingsOfAFoundPlanRepeatIt) {
  for (const std::string body :
       {R"({"model":"llama2-13b","gpus":32,"global_batch":256,"top":40})",
        R"({"model":"gpt2-xl","gpus":24,"global_batch":96,"seq":512,"layout":"fp32","top":40})",
        R"({"model":"llama2-7b","nodes":2,"hardware":"h200","recompute":"full","top":10})",
        R"({"model":"mixtral-8x7b","gpus":32,"global_batch":256,"top":20})",
        R"({"model":"llama2-70b","gpus":4,"global_batch":64})"}) {
    Json found = answer(search_answer, body);
    Json plans = found["best"];
    for (const char* one : {"closest", "nearest_fit"}) {
      if (found.contains(one)) plans.push_back(found[one]);
    }
    ASSERT_FALSE(plans.empty()) << body;
    for (const Json& plan : plans) {
      const Json again = answer(plan_answer, plan["settings"].dump());
      EXPECT_EQ(again["memory"], plan["memory"]) << plan["settings"];
      EXPECT_EQ(again["time"], plan["time"]) << plan["settings"];
      EXPECT_EQ(again["tokens_per_s"], plan["tokens_per_s"]) << plan["settings"];
      EXPECT_EQ(again["question"], plan["question"]) << plan["settings"];
    }
  }
}

// A plan of a model given by its sizes repeats without a name.
TEST(Answers, SettingsOfAModelGivenByItsSizesHaveNoName) {
  for (const std::string sizes : {R"("layers":16,"hidden":2048,"heads":16,"seq":2048)",
                                  R"("model":"llama2-7b","layers":16,"hidden":2048,"heads":16)"}) {
    const Json plan =
        answer(search_answer, "{" + sizes + R"(,"gpus":8,"global_batch":64,"top":3})")["best"][1];
    const Json again = answer(plan_answer, plan["settings"].dump());
    EXPECT_EQ(again["memory"], plan["memory"]) << plan["settings"];
    EXPECT_EQ(again["tokens_per_s"], plan["tokens_per_s"]) << plan["settings"];
  }
}

TEST(Answers, LaunchCommandsNameHostsRanksAndData) {
  const Json found =
      answer(search_answer, R"({"model":"llama2-13b","gpus":32,"top":1})")["best"][0];
  const std::string train = found["train_command"].get<std::string>() + " --data DATA";
  ASSERT_EQ(found["launch"].size(), 3U);
  EXPECT_EQ(found["launch"][0]["command"],
            "torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "
            "HOST0:29500 --no-python " +
                train);
  EXPECT_EQ(found["launch"][1]["command"],
            "MASTER_ADDR=HOST0 MASTER_PORT=29500 srun --nodes 4 --ntasks-per-node 8 " + train);
  EXPECT_EQ(found["launch"][2]["command"],
            "tessera run -n 8 --nodes 4 --node-rank NODE --master-addr HOST0 --secret-file SECRET "
            "-- " +
                train);
  EXPECT_TRUE(
      answer(search_answer, R"({"model":"gpt2-xl","gpus":8})")["best"][0]["launch"].empty());
}

TEST(Answers, CostFollowsFromTheThroughput) {
  const Json got = answer(cost_answer, R"({"tokens":3.6e12,"gpus":[8,16,null],
      "tokens_per_s":[1e6,1.5e6,null],"watts":500,"price_per_hour":2.5})");
  const Json& row = got["rows"][0];
  EXPECT_DOUBLE_EQ(row["seconds"].get<double>(), 3.6e6);
  EXPECT_DOUBLE_EQ(row["gpu_hours"].get<double>(), 8000);
  EXPECT_DOUBLE_EQ(row["kwh"].get<double>(), 4000);
  EXPECT_DOUBLE_EQ(row["money"].get<double>(), 20000);
  EXPECT_DOUBLE_EQ(got["rows"][1]["seconds"].get<double>(), 2.4e6);
  EXPECT_TRUE(got["rows"][2].is_null());
  EXPECT_EQ(got["watts_basis"], "given");
  const Json usual = answer(cost_answer, R"({"gpus":[8],"tokens_per_s":[1e6]})");
  EXPECT_EQ(usual["watts"], planner::Catalog().find("h100").watts);
  EXPECT_EQ(usual["watts_basis"], "hardware");
  EXPECT_EQ(usual["price_basis"], "assumed");
  for (const std::string body :
       {R"({"gpus":[8],"tokens_per_s":[]})", R"({"gpus":[],"tokens_per_s":[]})",
        R"({"gpus":[8],"tokens_per_s":[0]})", R"({"tokens":0})"}) {
    EXPECT_THROW(answer(cost_answer, body), UsageError) << body;
  }
}

TEST(Answers, MemoryOverAStepPeaksAtThePlan) {
  for (const std::string body :
       {R"({"model":"gpt2-xl","dp":8,"zero":1,"grad_accum":4,"hardware":"h200"})",
        R"({"model":"llama2-7b","dp":8,"zero":3,"recompute":"full"})",
        R"({"model":"llama2-7b","tp":2,"pp":4,"grad_accum":8,"schedule":"zb-h1"})",
        R"({"model":"llama2-7b","pp":4,"grad_accum":8,"schedule":"interleaved","chunks":2,
            "hardware":"h200"})"}) {
    const Json plan = answer(plan_answer, body);
    const Json over = answer(memory_over_step_answer, body);
    EXPECT_EQ(over["pipeline_rank"], plan["pipeline_rank"]) << body;
    EXPECT_NEAR(over["peak"].get<double>() / plan["memory"]["total"].get<double>(), 1, 1e-9)
        << body;
    const double state = over["params"].get<double>() + over["grads"].get<double>() +
                         over["optimizer"].get<double>() + over["buffers"].get<double>();
    double most = 0, activations = 0, last = 0;
    for (std::size_t i = 0; i < over["seconds"].size(); ++i) {
      EXPECT_GE(over["seconds"][i].get<double>(), last) << body;
      last = over["seconds"][i].get<double>();
      activations = std::max(activations, over["activations"][i].get<double>());
      most = std::max(
          most, state + over["activations"][i].get<double>() + over["temporary"][i].get<double>());
    }
    EXPECT_NEAR(most / over["peak"].get<double>(), 1, 1e-9) << body;
    const bool split = body.find("zb-") != std::string::npos;  // they become temporaries
    const double planned = plan["memory"]["activations"].get<double>();
    EXPECT_LE(activations, planned * (1 + 1e-9)) << body;
    if (!split) {
      EXPECT_GE(activations, planned * (1 - 1e-9)) << body;
    }
    EXPECT_LE(last, over["step"].get<double>() * (1 + 1e-9)) << body;
    EXPECT_NEAR(over["activations"].back().get<double>(), 0, 1) << body;
  }
  EXPECT_THROW(answer(memory_over_step_answer, R"({"params":"7B"})"), UsageError);
}

TEST(Answers, QuestionsAreAnsweredByThePlan) {
  const std::string body =
      R"({"model":"llama2-7b","dp":8,"tp":2,"pp":4,"zero":1,"grad_accum":8,"schedule":"1f1b"})";
  const Json got = answer(questions_answer, body);
  std::map<std::string, Json> by_id;
  for (const Json& each : got["questions"]) {
    by_id[each["id"]] = each;
    EXPECT_GT(each["explanation"].get<std::string>().size(), 8U) << each["id"];
    if (each["kind"] == "choice") {
      EXPECT_LT(each["answer"].get<std::size_t>(), each["choices"].size()) << each["id"];
    }
  }
  const Json plan = answer(plan_answer, body);
  EXPECT_EQ(by_id["bytes"]["answer"], 16);
  EXPECT_EQ(by_id["sharded"]["answer"], 1);
  EXPECT_EQ(by_id["batch"]["answer"], plan["question"]["global_batch"]);
  EXPECT_EQ(by_id["mesh"]["answer"], 64);
  EXPECT_NEAR(by_id["bubble"]["answer"].get<double>(), 100 * 3.0 / 11, 1e-9);
  EXPECT_NEAR(by_id["tensor"]["answer"].get<double>(), plan["traffic"]["tp"].get<double>() / 1e9,
              1e-6);
  EXPECT_NEAR(by_id["stage3-traffic"]["answer"].get<double>() *
                  answer(zero_answer, body)["stages"][0]["sent"]["total"].get<double>(),
              answer(zero_answer, body)["stages"][3]["sent"]["total"].get<double>(), 10);
  EXPECT_EQ(got["batch"]["ranks"], 8);
}

TEST(Answers, PastedModelsArePlannedLikeNamedOnes) {
  Knowledge known;
  const auto ask_of = [&](const AnswerText& route, Json body) {
    Ask ask(body.dump());
    return Json::parse(route(known, ask));
  };
  const AnswerText plan = with_pasted_model(
      [](const Knowledge& about, Ask& ask) { return plan_answer(about, ask).dump(); });
  const Json config = {{"model_type", "llama"},        {"num_hidden_layers", 32},
                       {"hidden_size", 4096},          {"num_attention_heads", 32},
                       {"num_key_value_heads", 8},     {"intermediate_size", 14336},
                       {"vocab_size", 128256},         {"max_position_embeddings", 8192},
                       {"tie_word_embeddings", false}, {"a_field", 1}};
  const Json body = {{"config", config}, {"dp", 8}};
  const Json pasted = ask_of(plan, body);
  const Json named = answer(plan_answer, R"({"model":"llama3-8b","dp":8})");
  EXPECT_EQ(pasted["memory"], named["memory"]);
  EXPECT_EQ(pasted["tokens_per_s"], named["tokens_per_s"]);
  EXPECT_EQ(pasted["command"], "tessera plan --dp 8 --model ./model");
  Ask ask(Json{{"config", config.dump()}}.dump());
  const Json model = model_answer(known, ask);
  EXPECT_EQ(model["kv_heads"], 8);
  ASSERT_EQ(model["notes"].size(), 1U);
  EXPECT_TRUE(contains(model["notes"][0].get<std::string>(), "a_field")) << model["notes"];
  for (const Json& wrong : {Json{{"config", {{"layers", 1}}}}, Json{{"config", 7}},
                            Json{{"config", body["config"]}, {"model", "gpt2-xl"}}}) {
    try {
      ask_of(plan, wrong);
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.field().substr(0, 6), wrong.contains("model") ? "model" : "config") << wrong;
    }
  }
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
