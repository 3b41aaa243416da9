// Answers as JSON beside the tree that they could be printed from: [Note: JSON without a tree].

#include "tessera/planner/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "tessera/core/errors.h"
#include "tessera/planner/stages.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

// The slow way.
namespace tree {

using Json = nlohmann::ordered_json;

Json whole_json(double value) {
  if (std::abs(value) < 9e18) return std::llround(value);
  return value;
}

std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json shape_json(const ModelShape& m) {
  return {{"name", m.name},         {"layers", m.layers}, {"hidden", m.hidden}, {"heads", m.heads},
          {"kv_heads", m.kv_heads}, {"ffn", m.ffn},       {"vocab", m.vocab}};
}

Json question_json(const Question& q) {
  Json json;
  if (q.state_only()) {
    json["params"] = whole_json(q.params);
  } else {
    json["model"] = shape_json(q.model);
    json["seq"] = q.seq;
  }
  json["gpus"] = q.world();
  for (const Axis axis : kPrintedAxes) json[std::string(axis_name(axis))] = q.axes.given(axis);
  json["sequence_parallel"] = q.sequence_parallel;
  json["slice_hops"] = q.slice_hops.value_or(false);
  json["order"] = q.order;
  json["zero"] = q.zero;
  json["layout"] = q.layout.name;
  json["grad_reduce"] = q.policy() == ReducePolicy::each ? "each" : "last";
  if (q.compression() != GradCompression::none) {
    json["grad_compression"] = name(q.compression());
    if (q.power_sgd_asked()) json["powersgd_rank"] = q.power_sgd.rank;
  }
  json["micro_batch"] = q.micro_batch;
  json["grad_accum"] = q.grad_accum;
  json["global_batch"] = q.global_batch;
  json["recompute"] = name(q.recompute);
  json["attention"] = q.attention == Attention::fused ? "fused" : "unfused";
  if (q.software) json["software"] = name(*q.software);
  json["schedule"] = q.schedule;
  json["split"] = q.split;
  json["chunks"] = q.chunks;
  json["hardware"] = q.hardware.name;
  json["nodes"] = q.nodes;
  json["gpus_per_node"] = q.per_node;
  return json;
}

// Of a size alone nothing is known but the state, which is then the total.
Json state_json(const Memory& m) {
  return {{"params", whole_json(m.params)},
          {"grads", whole_json(m.grads)},
          {"optimizer", whole_json(m.optimizer)},
          {"activations", nullptr},
          {"buffers", nullptr},
          {"temporary", nullptr},
          {"total", whole_json(m.total())}};
}

Json memory_json(const Memory& m) {
  return {{"params", whole_json(m.params)},           {"grads", whole_json(m.grads)},
          {"optimizer", whole_json(m.optimizer)},     {"activations", whole_json(m.activations)},
          {"buffers", whole_json(m.buffers)},         {"temporary", whole_json(m.temporary)},
          {"not_at_once", whole_json(m.not_at_once)}, {"total", whole_json(m.total())}};
}

Json assumed_json(const std::optional<Assumed>& assumed) {
  if (!assumed) return nullptr;
  return {{"model", shape_json(assumed->model)},
          {"parameters", assumed->model.params()},
          {"seq", assumed->seq},
          {"memory", memory_json(assumed->memory)}};
}

Json traffic_json(const Traffic& t) {
  Json rows = Json::array();
  for (const TrafficRow& row : t.rows) {
    rows.push_back({{"axis", axis_name(row.axis)},
                    {"what", row.what},
                    {"calls", whole_json(row.calls)},
                    {"bytes", whole_json(row.bytes)}});
  }
  return {{"dp", whole_json(t.sent[Axis::dp_shard])},
          {"dp_replicate", whole_json(t.sent[Axis::dp_replicate])},
          {"tp", whole_json(t.sent[Axis::tp])},
          {"pp", whole_json(t.sent[Axis::pp])},
          {"total", whole_json(t.total())},
          {"dp_by_policy", {{"each", whole_json(t.dp_each)}, {"last", whole_json(t.dp_last)}}},
          {"rows", std::move(rows)}};
}

Json time_json(const StepTime& t) {
  return {{"compute", t.compute},
          {"comm_exposed", t.exposed()},
          {"comm_exposed_by_axis",
           {{"dp", t.comm[Axis::dp_shard]},
            {"dp_replicate", t.comm[Axis::dp_replicate]},
            {"tp", t.comm[Axis::tp]},
            {"pp", t.comm[Axis::pp]}}},
          {"bubble", t.bubble},
          {"optimizer", t.optimizer},
          {"step", t.step()}};
}

Json plan_json(const Plan& plan) {
  const Question& q = plan.question;
  Json json;
  json["parameters"] = whole_json(plan.parameters);
  json["parameters_in_blocks"] = q.state_only() ? Json() : whole_json(plan.in_blocks);
  json["parameters_in_embeddings"] = q.state_only() ? Json() : whole_json(plan.in_embeddings);
  json["parameters_on_most_loaded_rank"] = whole_json(plan.on_a_rank);
  json["memory"] = q.state_only() ? state_json(plan.memory) : memory_json(plan.memory);
  if (q.state_only()) json["assumed"] = assumed_json(plan.assumed);
  json["pipeline_rank"] = plan.rank;
  if (q.pp() > 1 && !q.state_only()) {
    Json& ranks = json["memory_by_pipeline_rank"] = Json::array();
    for (const Memory& memory : plan.by_rank) ranks.push_back(memory_json(memory));
  }
  json["traffic"] = traffic_json(plan.traffic);
  if (q.state_only()) {  // nothing is known of time
    for (const char* key : {"time", "tokens_per_s", "model_flops", "mfu"}) json[key] = nullptr;
  } else {
    json["time"] = time_json(plan.time);
    json["time"]["interval"] = {
        {"low", plan.interval.low}, {"high", plan.interval.high}, {"basis", plan.interval.basis}};
    json["tokens_per_s"] = plan.tokens_per_s;
    json["model_flops"] = plan.model_flops;
    json["model_flops_per_s_per_gpu"] = plan.model_flops / (plan.time.step() * q.world());
    json["mfu"] = plan.mfu;
    if (plan.price > 0) json["price_per_step"] = plan.price;
    if (plan.joules > 0) json["joules_per_step"] = plan.joules;
  }
  json["fits"] = plan.fit_known ? Json(plan.fits) : Json();
  json["margin"] = whole_json(plan.margin);
  // What binds a step is not known without its time, unless it does not fit.
  json["bound"] = q.state_only() && plan.fits ? Json() : Json(name(plan.bound));
  json["remedy"] = plan.remedy;
  Json &advice = json["advice"] = Json::array(), &changes = json["changes"] = Json::array();
  for (const Advice& each : plan.advice) {
    advice.push_back(each.text);
    changes.push_back({{"flags", each.flags},
                       {"seconds_saved", q.state_only() ? Json() : Json(each.seconds)},
                       {"bytes_saved", whole_json(each.bytes)},
                       {"bytes_sent_saved", whole_json(each.sent)},
                       {"fits", each.fits}});
  }
  json["notes"] = plan.notes;
  json["question"] = question_json(q);
  return json;
}

Json batch_limit_json(const BatchLimit& limit) {
  return {{"zero", limit.zero},
          {"dp", limit.dp},
          {"micro_batch", limit.micro_batch},
          {"global_batch", limit.global_batch},
          {"memory", whole_json(limit.memory)}};
}

Json model_limit_json(const ModelLimit& limit) {
  Json json = {{"zero", limit.zero},
               {"dp", limit.dp},
               {"parameters", whole_json(limit.params)},
               {"memory", whole_json(limit.memory)}};
  if (limit.model.layers > 0) json["model"] = shape_json(limit.model);
  return json;
}

template <typename Limits, typename Row>
std::string limits_line(const Limits& limits, const Row& row) {
  Json json = row(limits.asked);
  for (const auto& each : limits.rows) json["rows"].push_back(row(each));
  return one_line(json);
}

std::string search_line(const SearchResult& result) {
  Json best = Json::array();
  for (const Plan& plan : result.best) {
    best.push_back(plan_json(plan));
    best.back()["as_good_as_the_best"] = as_good_as(plan, result.best.front());
  }
  Json ruled_out = Json::object();
  for (const auto& [reason, count] : result.ruled_out) ruled_out[reason] = count;
  return one_line({{"best", std::move(best)},
                   {"tried", result.tried},
                   {"fitting", result.fitting},
                   {"ruled_out", std::move(ruled_out)}});
}

Json stages_json(const std::vector<StageAnswer>& stages) {
  const Question& q = stages.front().plan.question;
  const auto whole = [](double value) { return std::llround(std::clamp(value, -9e18, 9e18)); };
  const std::int64_t params = whole(stages.front().plan.on_a_rank);
  Json rows = Json::array(), owners = Json::array();
  for (const StageAnswer& s : stages) {
    Json& row = rows.emplace_back();
    row = {{"stage", s.stage},
           {"name", s.name},
           {"sharded",
            {{"params", s.sharded.params},
             {"grads", s.sharded.grads},
             {"optimizer", s.sharded.optimizer}}},
           {"sent",
            {{"forward", whole(s.forward)},
             {"backward", whole(s.backward)},
             {"optimizer_step", whole(s.optimizer)},
             {"total", whole(s.sent())}}},
           {"state_in_all", whole(s.held)},
           {"copies", s.copies()},
           {"needed", whole(s.plan.needed())},
           {"margin", whole(s.plan.margin)}};
    if (s.plan.assumed) {
      const Memory& besides = s.plan.assumed->memory;
      row["assumed"] = {{"activations", whole(besides.activations)},
                        {"buffers", whole(besides.buffers)},
                        {"temporary", whole(besides.temporary)},
                        {"total", whole(besides.total())}};
    }
    const bool sized = !s.plan.question.state_only();
    row["memory"] = sized ? memory_json(s.plan.memory) : state_json(s.plan.memory);
    row["fits"] = s.plan.fit_known ? Json(s.plan.fits) : Json();
    row["time"] = sized ? time_json(s.plan.time) : Json();
  }
  for (int r = 0; r < std::min(q.dp(), 64); ++r) {
    const OwnedPart part = owned_part(params, q.shards(), r % q.shards());
    owners.push_back({{"dp_rank", r}, {"first", part.first}, {"last", part.last}});
  }
  return {{"parameters", whole(stages.front().plan.parameters)},
          {"parameters_on_a_rank", params},
          {"layout", q.layout.name},
          {"dp", q.dp()},
          {"dp_replicate", q.replicas()},
          {"tp", q.tp()},
          {"pp", q.pp()},
          {"one_copy", whole(stages.front().one_copy)},
          {"stages", std::move(rows)},
          {"owners", std::move(owners)}};
}

}  // namespace tree

// Draws settings of many kinds; some of them cannot be.
class Asker {
 public:
  std::optional<Question> next() {
    Settings settings;
    const auto set = [&](const char* key, std::vector<const char*> values) {
      const std::size_t at = random_() % (values.size() + 1);
      if (at < values.size()) settings.set(key, values[at]);
    };
    switch (random_() % 4) {
      case 0: set("params", {"7B", "175B", "1000000000000000000", "123456789"}); break;
      case 1:
        settings.set("layers", "12"), settings.set("hidden", "768"), settings.set("heads", "12");
        set("vocab", {"50257", "50304"});
        break;
      default: set("model", {"gpt2-xl", "llama2-7b", "llama2-70b", "gpt3-175b", "gpt-tiny"});
    }
    set("dp", {"1", "2", "8", "64", "1024"});
    set("tp", {"1", "2", "8"});
    set("pp", {"1", "2", "4"});
    set("zero", {"0", "1", "2", "3"});
    set("seq", {"512", "2048", "32768"});
    set("micro-batch", {"1", "2", "16"});
    set("grad-accum", {"1", "4", "8"});
    set("hardware", {"h100", "a100-80gb", "v100-32gb", "local-cpu"});
    set("layout", {"fp32", "bf16-fp32grad", "bf16-nomaster"});
    set("software", {"megatron", "tessera", "pytorch"});
    set("recompute", {"none", "selective", "full"});
    set("attention", {"fused", "unfused"});
    set("schedule", {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"});
    set("grad-compression", {"none", "bf16", "powersgd"});
    set("grad-reduce", {"each", "last"});
    set("price-per-hour", {"0", "2.5", "7"});
    set("watts", {"0", "700"});
    try {
      return settle(settings.question(built_in()));
    } catch (const UsageError&) {
      return std::nullopt;
    }
  }

 private:
  std::mt19937 random_{20261117};
};

TEST(JsonWithoutATree, PlansAndStagesAreWhatTheTreePrints) {
  Asker asker;
  int asked = 0, sized = 0, pipelined = 0, advised = 0, too_large = 0;
  while (asked < 600) {
    const std::optional<Question> question = asker.next();
    if (!question) continue;
    ++asked;
    const Plan plan = advised_plan(*question);
    ASSERT_EQ(to_json(plan), tree::one_line(tree::plan_json(plan)));
    const auto stages = compare_stages(*question);
    ASSERT_EQ(to_json(stages), tree::one_line(tree::stages_json(stages)));
    sized += question->state_only() ? 0 : 1;
    pipelined += question->pp() > 1 ? 1 : 0;
    advised += plan.advice.empty() ? 0 : 1;
    too_large += plan.fits ? 0 : 1;
  }
  for (const int kind : {sized, pipelined, advised, too_large}) {
    EXPECT_GT(kind, 50);
    EXPECT_LT(kind, asked - 50);
  }
}

TEST(JsonWithoutATree, LimitsAndSearches) {
  Asker asker;
  for (int asked = 0; asked < 20;) {
    const std::optional<Question> question = asker.next();
    if (!question || question->dp() > 64) continue;
    ++asked;
    const BatchLimits batches = question->state_only() ? BatchLimits{} : largest_batches(*question);
    ASSERT_EQ(to_json(batches), tree::limits_line(batches, tree::batch_limit_json));
    const ModelLimits models = largest_models(*question);
    ASSERT_EQ(to_json(models), tree::limits_line(models, tree::model_limit_json));
  }
  SearchResult found;
  found.tried = 3;
  found.ruled_out = {{"needs \"quotes\"\n\xff", 2}, {"memory", 1}};
  ASSERT_EQ(to_json(found), tree::search_line(found));
  while (found.best.size() < 5) {
    if (const auto question = asker.next()) found.best.push_back(advised_plan(*question));
  }
  ASSERT_EQ(to_json(found), tree::search_line(found));
}

// Whatever a number or a text is.
TEST(JsonWithoutATree, Values) {
  std::mt19937_64 random(7);
  std::vector<double> numbers = {0,    -0.0,  1,       0.1,     1e15, 1e16, 1e20, 5e-324,
                                 9e18, -9e18, 8.99e18, 1.7e308, -2.5, 0.5,  1e-5, 123456789.125};
  numbers.push_back(std::numeric_limits<double>::infinity());
  numbers.push_back(std::nan(""));
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bits = random();
    double number = 0;
    static_assert(sizeof number == sizeof bits);
    std::memcpy(&number, &bits, sizeof bits);
    numbers.push_back(number);
  }
  for (const double number : numbers) {
    ASSERT_EQ(JsonText().element(number).take(), tree::Json(number).dump());
    ASSERT_EQ(JsonText().element(Whole{number}).take(), tree::whole_json(number).dump());
  }
  std::vector<std::string> texts = {
      "",        "plain",    "a \"quote\"", "back\\slash",          "tab\t", "\x7f", "\x01",
      "dp · tp", "cut \xc2", "\xff\xfe",    std::string("nul\0", 4)};
  for (int i = 0; i < 2'000; ++i) {
    std::string& text = texts.emplace_back();
    for (std::uint64_t n = random() % 9; n > 0; --n) text += static_cast<char>(random());
  }
  for (const std::string& text : texts) {
    ASSERT_EQ(JsonText().element(text).take(), tree::one_line(text));
    tree::Json object;
    object[text] = 1;
    ASSERT_EQ(JsonText().object().member_called(text, 1).end_object().take(),
              tree::one_line(object));
  }
  EXPECT_EQ(JsonText()
                .object()
                .list("empty")
                .end_list()
                .object("none")
                .end_object()
                .member("n", nullptr)
                .member("yes", true)
                .end_object()
                .take(),
            R"({"empty":[],"none":{},"n":null,"yes":true})");
}

}  // namespace
}  // namespace tessera::planner
