// Scenarios made from the planner's questions: both predictions compared.

#include <gtest/gtest.h>

#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {
namespace {

using Given = std::vector<std::pair<const char*, const char*>>;

planner::RunConfig ask(const Given& given) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  for (const auto& [key, value] : given) settings.set(key, value);
  return planner::resolve(look_up(settings, planner::Catalog()));
}

const std::vector<Given> kQuestions = {
    {{"model", "gpt2-xl"}, {"dp", "4"}, {"micro-batch", "4"}},
    {{"model", "gpt2-xl"}, {"dp", "8"}, {"zero", "1"}, {"micro-batch", "8"}, {"grad-accum", "2"}},
    {{"model", "gpt2-xl"}, {"dp", "16"}, {"zero", "2"}, {"micro-batch", "8"}},
    {{"model", "llama2-7b"}, {"dp", "32"}, {"zero", "3"}, {"micro-batch", "2"}},
    {{"model", "gpt3-175b"},
     {"dp", "8"},
     {"tp", "8"},
     {"pp", "8"},
     {"hardware", "a100-80"},
     {"global-batch", "256"},
     {"checkpoint-activations", "full"}},
    {{"model", "llama3-70b"},
     {"dp", "4"},
     {"tp", "8"},
     {"pp", "4"},
     {"schedule", "interleaved"},
     {"chunks", "4"},
     {"global-batch", "64"}},
    {{"model", "gpt2-774m"}, {"pp", "4"}, {"dp", "2"}, {"schedule", "gpipe"}, {"grad-accum", "8"}},
    {{"model", "gpt2-774m"}, {"pp", "4"}, {"schedule", "zb-h1"}, {"grad-accum", "16"}},
};

TEST(Questions, BytesEqualThePlan) {
  for (std::size_t i = 0; i < kQuestions.size(); ++i) {
    const planner::RunConfig q = ask(kQuestions[i]);
    const Result result = simulate(q);
    double most = 0;
    for (const RankTime& rank : result.ranks) most = std::max(most, rank.sent[Axis::dp_shard]);
    const double planned = planner::traffic_of(q).sent[Axis::dp_shard];
    EXPECT_NEAR(most, planned, 1e-9 * planned) << "question " << i;
  }
}

}  // namespace
}  // namespace tessera::simulator
