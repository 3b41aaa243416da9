// Scenarios made from the planner's questions, and the two predictions beside each other.

#include <gtest/gtest.h>

#include "tessera/planner/layer_time.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/settings.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {
namespace {

using Given = std::vector<std::pair<const char*, const char*>>;

planner::Question ask(const Given& given) {
  planner::Settings settings;
  for (const auto& [key, value] : given) settings.set(key, value);
  return planner::settle(settings.question(planner::Catalogue()));
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

// The planner's closed forms and the events are two ways to the same number. The planner takes
// the slowest stage for all and hides communication wholesale, so they differ a little.
TEST(Questions, PlannerAndSimulatorAgree) {
  for (std::size_t i = 0; i < kQuestions.size(); ++i) {
    const planner::Question q = ask(kQuestions[i]);
    const double planned = planner::step_time(q).step();
    const Result result = simulate(scenario_of(q));
    // The planner charges transfers that overlap with half their time, for slowing down the kernels
    // beside them; here they are free.
    EXPECT_LT(result.step / planned, 1.05) << "question " << i;
    EXPECT_GT(result.step / planned, 0.80) << "question " << i;
    EXPECT_NEAR(result.mean.step(), result.step, 1e-9 * result.step);
  }
}

TEST(Questions, BytesAreThePlans) {
  for (std::size_t i = 0; i < kQuestions.size(); ++i) {
    const planner::Question q = ask(kQuestions[i]);
    const Result result = simulate(scenario_of(q));
    double most = 0;
    for (const RankTime& rank : result.ranks) most = std::max(most, rank.sent_dp);
    const double planned = planner::traffic_of(q).dp;
    EXPECT_NEAR(most, planned, 1e-9 * planned) << "question " << i;
  }
}

// A collective alone takes what the planner says it takes.
TEST(Questions, CollectivesAreThePlanners) {
  for (const char* name : {"a100-80", "h100"}) {
    const planner::Hardware hardware = planner::Catalogue().find(name);
    const Fabric fabric{hardware.inside, hardware.between, hardware.per_node, Algorithm::mixed,
                        hardware.rail_share};
    for (int ranks = 1; ranks <= 4096; ranks = ranks * 3 / 2 + 1) {
      for (const int per_node : {1, 2, 4, 8}) {
        for (const auto kind :
             {planner::Collective::all_reduce, planner::Collective::reduce_scatter,
              planner::Collective::all_gather}) {
          const double want = planner::collective_time(hardware, kind, 3e8, ranks, per_node);
          const double got = collective_load(fabric, kind, 3e8, ranks, per_node).seconds(fabric);
          EXPECT_NEAR(got, want, 1e-9 * std::max(1.0, want)) << ranks << " " << per_node;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::simulator
