// Applies every piece of advice and checks that it achieves the promised gain.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/neighbors.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/search.h"
#include "tessera/planner/step_time.h"
#include "tests/planner/advised_case.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

std::vector<AdvisedCase> grid() {
  std::vector<AdvisedCase> all;
  const std::vector<std::vector<std::pair<const char*, const char*>>> meshes = {
      {{"dp", "8"}},
      {{"dp", "64"}},
      {{"tp", "4"}, {"dp", "2"}},
      {{"tp", "16"}, {"dp", "2"}},
      {{"pp", "4"}, {"dp", "4"}, {"schedule", "gpipe"}},
      {{"pp", "4"}, {"dp", "4"}, {"schedule", "zb-h1"}},
      {{"tp", "2"}, {"pp", "2"}, {"dp", "4"}, {"sequence-parallel", "true"}}};
  const std::vector<std::vector<std::pair<const char*, const char*>>> oddities = {
      {},
      {{"recompute", "full"}, {"overlap-grad-reduce", "false"}},
      {{"bucket-size", "100kB"}},
      {{"micro-batch", "4"}, {"attention", "unfused"}},
      {{"keep-params", "true"}, {"grad-reduce", "last"}, {"overlap-param-gather", "false"}}};
  for (const char* model : {"gpt3-1.3b", "llama2-7b", "gpt3-6.7b"}) {
    for (const char* hardware : {"h100", "a100-40"}) {
      for (const auto& mesh : meshes) {
        for (const auto& odd : oddities) {
          for (const char* zero : {"0", "1", "2", "3"}) {
            AdvisedCase one;
            const auto set = [&](const char* key, const char* value) {
              one.settings.set(key, value);
              one.words += str(" --", key, " ", value);
            };
            set("model", model), set("hardware", hardware), set("zero", zero);
            set("grad-accum", "8");
            // Cycles, so that each is combined with every stage, mesh and variant.
            set("software", (std::array{"megatron", "tessera", "pytorch"})[all.size() % 3]);
            for (const auto& [key, value] : mesh) set(key, value);
            for (const auto& [key, value] : odd) set(key, value);
            all.push_back(std::move(one));
          }
        }
      }
    }
  }
  return all;
}

// Returns the notes about features that the software does not support.
std::set<std::string> not_done(const Plan& plan) {
  std::set<std::string> all;
  for (const std::string& note : notes_for(plan)) {
    for (const char* words : {"shards only the optimizer state", "has no schedule", "refuses"}) {
      if (note.find(words) != std::string::npos) all.insert(words);
    }
  }
  return all;
}

TEST(Advice, AchievesThePromisedGains) {
  int advised = 0;
  std::set<std::string> families;
  const std::vector<AdvisedCase> cases = grid();
  ASSERT_GE(cases.size(), 200U);
  for (const AdvisedCase& one : cases) {
    const Plan plan = make_plan(look_up(one.settings, built_in()));
    const double step = plan.time.step(), needed = plan.needed();
    for (const Advice& advice : plan.advice) {
      ++advised;
      families.insert(advice.family);
      const std::string what = one.words + " | " + advice.text;
      Plan then;
      ASSERT_NO_THROW(
          then = plan_numbers(resolve(look_up(with_flags(one.settings, advice.flags), built_in()))))
          << what;
      EXPECT_NEAR(step - then.time.step(), advice.seconds, 1e-9 * step) << what;
      EXPECT_NEAR(needed - then.needed(), advice.bytes, 1e-9 * needed) << what;
      EXPECT_NEAR(plan.traffic.total() - then.traffic.total(), advice.sent,
                  1e-9 * plan.traffic.total())
          << what;
      EXPECT_TRUE(then.fits) << what;
      // The software supports it: the changed plan has no note to the contrary.
      const std::set<std::string> before = not_done(plan), after = not_done(then);
      EXPECT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end())) << what;
      // The same work on the same devices.
      EXPECT_EQ(then.question.global_batch, plan.question.global_batch) << what;
      EXPECT_EQ(then.question.world(), plan.question.world()) << what;
      EXPECT_DOUBLE_EQ(then.parameters, plan.parameters) << what;
      // A real gain, reported with its numbers.
      const bool sooner = advice.seconds >= 0.02 * step && !as_good_as(plan, then);
      const bool smaller = advice.bytes >= 0.02 * needed && advice.seconds >= -0.002 * step &&
                           !leaves_ample_memory(needed, plan.question.hardware);
      EXPECT_EQ(advice.faster, sooner) << what;
      EXPECT_TRUE(!plan.fits || sooner || smaller) << what;
      EXPECT_EQ(advice.text.rfind(advice.flags, 0), 0U) << what;
      const std::string number = !plan.fits ? format_time(then.time.step())
                                 : sooner   ? format_time(advice.seconds)
                                            : format_bytes(std::llround(advice.bytes));
      EXPECT_NE(advice.text.find(number), std::string::npos) << what;
    }
    // "links twice as fast" appears only if it helps.
    EXPECT_FALSE(plan.remedy.empty()) << one.words;
  }
  EXPECT_GT(advised, 500);
  EXPECT_GE(families.size(), 8U);
}

// Edits with same_parts do not change the times of parts, which are not computed again.
TEST(Advice, EditsWithSamePartsKeepTheTimesOfParts) {
  int alike = 0, others = 0;
  for (const AdvisedCase& one : grid()) {
    const RunConfig q = resolve(look_up(one.settings, built_in()));
    const PartTimes parts = part_times(q);
    const Programs programs = programs_in_memory(q);
    for_each_neighbor(q, [&](const Edit& edit) {
      if (!edit.same_parts) {
        ++others;
        return;
      }
      try {
        const RunConfig other = resolve(edit.candidate.config);
        const PartTimes then = part_times(other);
        ++alike;
        EXPECT_EQ(needed_memory(other, programs), needed_memory(other)) << edit.flags;
        EXPECT_TRUE(then.layer == parts.layer && then.first == parts.first &&
                    then.embedding == parts.embedding && then.head == parts.head)
            << one.words << " | " << edit.flags;
      } catch (const UsageError&) {  // not possible
      }
    });
  }
  EXPECT_GT(alike, 1000);
  EXPECT_GT(others, 1000);
}

// Advice, remedies and searches name only features that the software supports. If only the size is
// known, the software is unknown.
TEST(Advice, ProposesOnlySupportedFeatures) {
  const auto plan_of = [](std::initializer_list<std::pair<const char*, const char*>> given) {
    RunConfig settings = RunConfig::for_plan();
    for (const auto& [key, value] : given) settings.set(key, value);
    return make_plan(look_up(settings, built_in()));
  };
  for (const char* params : {"7B", "20B", "38B"}) {
    const Plan open = plan_of({{"params", params}, {"dp", "64"}});
    const Plan megatron = plan_of({{"params", params}, {"dp", "64"}, {"software", "megatron"}});
    const bool two = std::string(params) == "20B";
    EXPECT_EQ(open.remedy.find("--zero 2") != std::string::npos, two) << open.remedy;
    EXPECT_EQ(megatron.remedy.find("--zero 2"), std::string::npos) << megatron.remedy;
    EXPECT_TRUE(not_done(open).empty());
  }
  EXPECT_EQ(not_done(plan_of({{"params", "7B"}, {"dp", "8"}, {"zero", "2"}})).size(), 0U);
  EXPECT_EQ(not_done(plan_of({{"dp", "8"}, {"zero", "2"}, {"software", "megatron"}})).size(), 1U);
  EXPECT_EQ(not_done(plan_of({{"dp", "8"}, {"zero", "2"}, {"software", "pytorch"}})).size(), 0U);
  for (const char* software : {"megatron", "tessera", "pytorch"}) {
    RunConfig settings = RunConfig::for_plan();
    for (const auto& [key, value] :
         {std::pair{"model", "gpt3-6.7b"}, {"gpus", "16"}, {"global-batch", "64"}}) {
      settings.set(key, value);
    }
    settings.set("software", software);
    SearchRequest ask = search_request(settings, built_in());
    ask.top = 50;
    std::set<int> stages;
    for (const Plan& plan : search(ask).best) {
      EXPECT_TRUE(not_done(plan).empty()) << software;
      stages.insert(plan.question.zero);
    }
    EXPECT_EQ(stages.count(2), software == std::string("megatron") ? 0U : 1U) << software;
  }
  // An unsupported request is planned, with a note.
  RunConfig settings = RunConfig::for_plan();
  for (const auto& [key, value] :
       {std::pair{"model", "gpt3-6.7b"}, {"gpus", "16"}, {"zero", "2"}, {"schedule", "zb-h1"}}) {
    settings.set(key, value);
  }
  const SearchResult asked = search(search_request(settings, built_in()));
  ASSERT_FALSE(asked.best.empty());
  EXPECT_EQ(asked.best.front().question.zero, 2);
}

// For other software, advice and remedies name that software's own setting.
TEST(Advice, NamesTheSoftwaresOwnSettingForAStage) {
  const auto plan_of = [](const char* params, const char* software) {
    RunConfig settings = RunConfig::for_plan();
    settings.set("params", params), settings.set("dp", "64"), settings.set("software", software);
    return make_plan(look_up(settings, built_in()));
  };
  // Does not fit because of its optimizer state, its gradients, or its parameters.
  for (const auto& [params, software, words] :
       {std::tuple{"7B", "megatron", "(in Megatron-LM: --use-distributed-optimizer)"},
        {"38B", "megatron", "(in Megatron-LM: its FSDP, --use-megatron-fsdp "},
        {"7B", "pytorch", "(in PyTorch: ZeroRedundancyOptimizer)"},
        {"20B", "pytorch", "(in PyTorch: fully_shard with reshard_after_forward=False)"},
        {"38B", "pytorch", "(in PyTorch: FSDP's fully_shard)"}}) {
    const Plan plan = plan_of(params, software);
    EXPECT_NE(plan.remedy.find(words), std::string::npos) << plan.remedy;
    bool told = false;
    for (const Advice& advice : plan.advice) {
      told = told || advice.text.find(words) != std::string::npos;
      EXPECT_EQ(advice.there.empty(), advice.flags.find("--zero ") == std::string::npos)
          << advice.text;
    }
    EXPECT_TRUE(told) << params << " " << software;
  }
  for (const char* params : {"7B", "38B"}) {
    const Plan plan = plan_of(params, "tessera");
    EXPECT_NE(plan.remedy.find("--zero "), std::string::npos) << plan.remedy;
    EXPECT_EQ(plan.remedy.find("(in "), std::string::npos) << plan.remedy;
  }
}

TEST(Advice, ProposesLargerBucketsForTinyOnes) {
  RunConfig settings = RunConfig::for_plan();
  // Buckets hold whole parameters, so small buckets are numerous only if parameters are small.
  for (const auto& [key, value] : {std::pair{"layers", "48"},
                                   {"hidden", "256"},
                                   {"heads", "4"},
                                   {"dp", "64"},
                                   {"zero", "1"},
                                   {"software", "tessera"},
                                   {"bucket-size", "1kB"}}) {
    settings.set(key, value);
  }
  const Plan plan = make_plan(look_up(settings, built_in()));
  ASSERT_EQ(plan.bound, Bound::network);
  std::string all;
  bool told = false;
  for (const Advice& advice : plan.advice) {
    all += advice.text + "\n";
    told = told || (advice.family == "bucket-size" && advice.seconds > 0.5 * plan.time.step());
  }
  EXPECT_TRUE(told) << all;
  EXPECT_EQ(plan.remedy.find("links"), std::string::npos) << plan.remedy;
}

TEST(Advice, OmitsTrafficThatDoesNotChange) {
  for (const char* zero : {"0", "1", "2", "3"}) {
    RunConfig settings = RunConfig::for_plan();
    settings.set("dp", "8"), settings.set("zero", zero);
    for (const Advice& advice : make_plan(look_up(settings, built_in())).advice) {
      const std::size_t at = advice.text.find("; sends ");
      if (at == std::string::npos) continue;
      ASSERT_EQ(advice.text.substr(advice.text.size() - advice.there.size()), advice.there);
      const std::string sends =
          advice.text.substr(at + 8, advice.text.size() - advice.there.size() - at - 8);
      const std::size_t instead = sends.find(" instead of ");
      ASSERT_NE(instead, std::string::npos);
      EXPECT_NE(sends.substr(0, instead), sends.substr(instead + 12)) << advice.text;
    }
  }
}

TEST(Advice, ConcernsOnlyMemoryIfOnlyTheSizeIsKnown) {
  RunConfig settings = RunConfig::for_plan();
  settings.set("params", "4B"), settings.set("dp", "8");
  const Plan plan = make_plan(look_up(settings, built_in()));
  ASSERT_FALSE(plan.advice.empty());
  for (const Advice& advice : plan.advice) EXPECT_EQ(advice.seconds, 0) << advice.text;
}

AdvisedCase hybrid_case(const char* replicas) {
  AdvisedCase one;
  for (const auto& [key, value] : {std::pair{"model", "llama3-8b"},
                                   {"hardware", "a100-80"},
                                   {"dp", "64"},
                                   {"zero", "3"},
                                   {"recompute", "full"},
                                   {"dp-replicate", replicas}}) {
    one.settings.set(key, value);
  }
  return one;
}

TEST(Advice, ProposesReplicasForSlowLinksBetweenNodes) {
  const AdvisedCase one = hybrid_case("1");
  const Plan plan = plan_of(one);
  const auto told = std::find_if(plan.advice.begin(), plan.advice.end(),
                                 [](const Advice& each) { return each.family == "dp-replicate"; });
  ASSERT_NE(told, plan.advice.end());
  EXPECT_EQ(told->flags, "--dp-replicate 8");
  EXPECT_NE(told->text.find("shards inside each of 8 nodes and replicates across; a node sends "),
            std::string::npos)
      << told->text;
  EXPECT_NE(told->text.find(" more"), std::string::npos) << told->text;
  EXPECT_LT(followed(one, *told).time.step(), plan.time.step());
}

TEST(Advice, WarnsOfTheMemoryOfReplicas) {
  const auto noted = [](const char* replicas, const char* text) {
    const std::vector<std::string> notes = plan_of(hybrid_case(replicas)).notes;
    return std::any_of(notes.begin(), notes.end(), [&](const std::string& note) {
      return note.find(text) != std::string::npos;
    });
  };
  EXPECT_FALSE(noted("1", "--dp-replicate"));
  EXPECT_TRUE(noted("8", "--dp-replicate 8: each of 8 groups of 8 ranks holds all state, which "));
  EXPECT_FALSE(noted("8", "use the same links"));
  EXPECT_TRUE(noted("4", "use the same links"));
  EXPECT_TRUE(noted("64", "has no effect, because each replica is one rank"));
}

TEST(Advice, ProposesFewerReplicasIfManyDoNotFit) {
  AdvisedCase one = hybrid_case("64");
  one.settings.set("model", "llama3-70b");
  one.settings.set("dp", "512");
  const Plan plan = plan_of(one);
  EXPECT_FALSE(plan.fits);
  EXPECT_NE(plan.remedy.find("--dp-replicate 16 fits: "), std::string::npos) << plan.remedy;
}

// If whole gradients do not fit, no other combination of flags does.
TEST(Advice, CombinesGradReduceEachIfWholeGradientsDoNotFit) {
  AdvisedCase one;
  for (const auto& [key, value] : {std::pair{"model", "gpt3-175b"},
                                   {"dp", "128"},
                                   {"zero", "3"},
                                   {"recompute", "selective"},
                                   {"grad-reduce", "last"}}) {
    one.settings.set(key, value);
  }
  const Plan plan = plan_of(one);
  ASSERT_FALSE(plan.fits);
  ASSERT_EQ(plan.advice.size(), 1U);
  EXPECT_EQ(plan.advice.front().flags, "--recompute full --grad-reduce each");
  EXPECT_TRUE(followed(one, plan.advice.front()).fits);
  EXPECT_TRUE(plan.remedy.starts_with(plan.advice.front().flags + " fits: ")) << plan.remedy;
}

// One rule for all candidates: fits, then the lower stage unless predictions distinguish the steps,
// then the shorter step.
TEST(Neighbors, AreRankedByFitThenStageThenTime) {
  const auto candidate = [](bool fits, int zero, double step) {
    Candidate one;
    one.config.zero = zero;
    one.fits = fits;
    one.step = step;
    one.interval = {0.9 * step, 1.1 * step, ""};
    return one;
  };
  EXPECT_TRUE(better(candidate(true, 3, 2), candidate(false, 0, 1)));
  EXPECT_TRUE(better(candidate(true, 1, 1.05), candidate(true, 2, 1)));
  EXPECT_FALSE(better(candidate(true, 2, 1), candidate(true, 1, 1.05)));
  EXPECT_TRUE(better(candidate(true, 2, 1), candidate(true, 1, 1.5)));
  EXPECT_TRUE(better(candidate(true, 1, 1), candidate(true, 1, 1.01)));
  EXPECT_FALSE(better(candidate(true, 1, 1), candidate(true, 1, 1)));
}

TEST(Neighbors, AreTimedOnlyIfTheyCanBeShortEnough) {
  RunConfig settings = RunConfig::for_plan();
  settings.set("dp", "8");
  Candidate one = Candidate::of(look_up(settings, built_in()));
  EXPECT_FALSE(one.time_step(1e-9));
  EXPECT_EQ(one.step, 0);
  EXPECT_TRUE(one.time_step());
  EXPECT_DOUBLE_EQ(one.step, step_time(one.config).step());
  EXPECT_TRUE(one.time_step(one.step));
  settings.set("tp", "7");
  EXPECT_THROW(Candidate::of(look_up(settings, built_in())), UsageError);
  EXPECT_FALSE(Candidate::beside(one.config, look_up(settings, built_in())));
}

}  // namespace
}  // namespace tessera::planner
