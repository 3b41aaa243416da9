// Rules of advice: [Note: advice].

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/search.h"
#include "tests/planner/advised_case.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

// Models that fit easily or barely, on every kind of GPU, on one and on several hosts.
std::vector<AdvisedCase> wide_grid() {
  std::vector<AdvisedCase> all;
  const std::vector<std::vector<std::pair<const char*, const char*>>> meshes = {
      {{"dp", "8"}},
      {{"dp", "64"}},
      {{"tp", "2"}, {"dp", "4"}},
      {{"tp", "8"}, {"dp", "2"}},
      {{"tp", "8"}, {"pp", "2"}, {"dp", "4"}},
      {{"pp", "4"}, {"dp", "4"}}};
  for (const char* model : {"gpt2-355m", "gpt3-1.3b", "gpt3-6.7b", "llama3-8b", "llama2-70b"}) {
    for (const char* hardware : {"h100", "b200", "h200", "a100-80", "v100-32"}) {
      for (const auto& mesh : meshes) {
        for (const char* zero : {"0", "1", "2", "3"}) {
          for (const char* micro : {"1", "8"}) {
            AdvisedCase one;
            const auto set = [&](const char* key, const char* value) {
              one.settings.set(key, value);
              one.words += str(" --", key, " ", value);
            };
            set("model", model), set("hardware", hardware), set("zero", zero);
            set("micro-batch", micro);
            // Cycles with another period than the stages.
            set("software", (std::array{"megatron", "tessera", "pytorch"})[all.size() % 3]);
            for (const auto& [key, value] : mesh) set(key, value);
            all.push_back(std::move(one));
          }
        }
      }
    }
  }
  return all;
}

bool has_note(const Plan& plan, const std::string& words) {
  return std::any_of(plan.notes.begin(), plan.notes.end(), [&](const std::string& note) {
    return note.find(words) != std::string::npos;
  });
}

// Advice that promises speed gains more than the prediction intervals. Saving memory is no reason
// if memory is ample.
TEST(AdviceRules, GainsExceedThePredictionIntervals) {
  int faster = 0, lighter = 0, quiet = 0;
  for (const AdvisedCase& one : wide_grid()) {
    const Plan plan = plan_of(one);
    if (!plan.fits) continue;
    const bool ample = leaves_ample_memory(plan.needed(), plan.question.hardware);
    quiet += plan.advice.empty() ? 1 : 0;
    for (const Advice& advice : plan.advice) {
      const Plan then = followed(one, advice);
      const std::string what = one.words + " | " + advice.text;
      if (advice.text.find(" saves ") == std::string::npos) {
        EXPECT_FALSE(ample) << what;
        ++lighter;
        continue;
      }
      ++faster;
      // Neither step is within the other's interval.
      EXPECT_GT(plan.time.step(), then.interval.high) << what;
      EXPECT_LT(then.time.step(), plan.interval.low) << what;
      EXPECT_FALSE(as_good_as(then, plan)) << what;
    }
  }
  EXPECT_GT(faster, 100);
  EXPECT_GT(lighter, 10);
  EXPECT_GT(quiet, 300);
}

// docs/strategy.md: the simplest stage that fits.
TEST(AdviceRules, RaisesTheStageOnlyIfMemoryIsScarce) {
  int ample = 0, scarce = 0, misfits = 0;
  for (const AdvisedCase& one : wide_grid()) {
    const Plan plan = plan_of(one);
    for (const Advice& advice : plan.advice) {
      const Plan then = followed(one, advice);
      const std::string what = one.words + " | " + advice.text;
      if (then.question.zero <= plan.question.zero) continue;
      EXPECT_FALSE(plan.fits && leaves_ample_memory(plan.needed(), plan.question.hardware)) << what;
      (plan.fits ? scarce : misfits) += 1;
      if (advice.family != "zero") continue;
      // No lower stage is as good.
      for (int stage = plan.question.zero + 1; stage < then.question.zero; ++stage) {
        RunConfig lower = then.question;
        lower.zero = stage;
        const Plan other = plan_numbers(lower);
        if (!other.fits || (stage == 2 && plan.question.software == Software::megatron)) continue;
        const bool gains = !plan.fits || !as_good_as(other, plan) ||
                           (plan.needed() - other.needed() >= 0.02 * plan.needed() &&
                            other.time.step() <= 1.002 * plan.time.step());
        EXPECT_FALSE(gains && as_good_as(other, then) &&
                     as_good_as(other, plan) == as_good_as(then, plan))
            << what << ", but --zero " << stage;
      }
    }
    ample += plan.fits && leaves_ample_memory(plan.needed(), plan.question.hardware) ? 1 : 0;
  }
  EXPECT_GT(ample, 300);
  EXPECT_GT(scarce, 5);
  EXPECT_GT(misfits, 50);
}

TEST(AdviceRules, NamesALowerStageThatFitsForAPlanAtStage3) {
  int named = 0, needed = 0;
  for (const AdvisedCase& one : wide_grid()) {
    const Plan plan = plan_of(one);
    const bool noted = has_note(plan, "stage 3 is not needed: --zero ");
    const bool advised = std::any_of(plan.advice.begin(), plan.advice.end(),
                                     [](const Advice& each) { return each.family == "zero"; });
    EXPECT_FALSE(noted && advised) << one.words;
    const bool said = noted || advised;
    if (plan.question.zero != 3 || !plan.fits) {
      EXPECT_FALSE(noted) << one.words;
      continue;
    }
    bool lower = false;
    for (int stage = 0; stage < 3; ++stage) {
      if (stage == 2 && plan.question.software == Software::megatron) continue;
      RunConfig other = plan.question;
      other.zero = stage;
      const Plan then = plan_numbers(other);
      lower =
          lower || (then.fits && (then.time.step() <= plan.time.step() || as_good_as(then, plan)));
    }
    EXPECT_EQ(said, lower) << one.words;
    (said ? named : needed) += 1;
  }
  EXPECT_GT(named, 50);
  EXPECT_GT(needed, 0);
  // The lowest stage that leaves ample memory, with its traffic.
  RunConfig settings = RunConfig::for_plan();
  settings.set("model", "gpt2-xl"), settings.set("dp", "8"), settings.set("zero", "3");
  const Plan plan = make_plan(look_up(settings, built_in()));
  EXPECT_TRUE(
      has_note(plan, "--zero 0 fits, 31.7 GB of 82.6 GB; sends 5.45 GB instead of 8.18 GB"));
}

// A stage 1 that is faster by more than the intervals is noted, although stage 0 fits.
TEST(AdviceRules, NotesThatStage1IsFasterIfTheUpdateIsLong) {
  RunConfig settings = RunConfig::for_plan();
  for (const auto& [key, value] : {std::pair{"model", "gpt3-1.3b"}, {"dp", "8"}}) {
    settings.set(key, value);
  }
  const Plan one = make_plan(look_up(settings, built_in()));
  EXPECT_TRUE(has_note(one, "with --zero 1 a rank updates 1/8 of the parameters")) << one.remedy;
  settings.set("grad-accum", "64");
  EXPECT_FALSE(has_note(make_plan(look_up(settings, built_in())), "--zero 1"));
}

// One layer, which a pipeline cannot split.
TEST(AdviceRules, WarnsThatTpSpansHosts) {
  AdvisedCase one;
  for (const auto& [key, value] : {std::pair{"layers", "1"},
                                   {"hidden", "61440"},
                                   {"heads", "480"},
                                   {"hardware", "a100-80"},
                                   {"tp", "8"},
                                   {"dp", "2"}}) {
    one.settings.set(key, value);
  }
  int across = 0;
  for (const Advice& advice : plan_of(one).advice) {
    if (followed(one, advice).question.tp() != 16) continue;
    ++across;
    EXPECT_NE(advice.text.find("; tp 16 goes across hosts of 8 GPUs"), std::string::npos)
        << advice.text;
  }
  EXPECT_EQ(across, 1);
  // Other advice does not mention it.
  for (const AdvisedCase& each : wide_grid()) {
    for (const Advice& advice : plan_of(each).advice) {
      const RunConfig then = followed(each, advice).question;
      const bool said = advice.text.find("across hosts") != std::string::npos;
      const Places on = places(then);
      const bool across_hosts = on.along[Axis::tp].nodes() > 1 || on.along[Axis::cp].nodes() > 1;
      const bool of_mesh = advice.family == "mesh" || advice.family == "cp";
      EXPECT_EQ(said, of_mesh && across_hosts) << advice.text;
    }
  }
}

TEST(AdviceRules, ProposesCompressionForNetworkBoundPlans) {
  const auto compressed = [](const char* layout, const char* software, const char* seq) {
    RunConfig settings = RunConfig::for_plan();
    for (const auto& [key, value] : {std::pair{"model", "gpt3-6.7b"},
                                     {"hardware", "h200"},
                                     {"dp", "16"},
                                     {"zero", "1"},
                                     {"layout", layout},
                                     {"software", software},
                                     {"seq", seq}}) {
      settings.set(key, value);
    }
    const Plan plan = make_plan(look_up(settings, built_in()));
    for (const Advice& advice : plan.advice) {
      if (advice.family != "grad-compression") continue;
      EXPECT_EQ(advice.flags, "--grad-compression bf16");
      EXPECT_NE(advice.text.find("are sent as bf16"), std::string::npos);
      EXPECT_NE(plan.remedy.find(advice.flags), std::string::npos) << plan.remedy;
      return true;
    }
    return false;
  };
  EXPECT_TRUE(compressed("bf16-fp32grad", "tessera", "128"));
  EXPECT_FALSE(compressed("bf16-fp32grad", "tessera", "2048"));  // computation hides most of it
  EXPECT_FALSE(compressed("bf16", "tessera", "128"));            // already 16 bits
  EXPECT_FALSE(compressed("bf16-fp32grad", "megatron", "128"));  // has no such flag
}

}  // namespace
}  // namespace tessera::planner
