// The closed forms and the simulation give the same numbers for many configurations.

#include "tessera/simulator/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "tessera/core/errors.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/step_time.h"

namespace tessera::simulator {
namespace {

constexpr int kConfigurations = 800;
constexpr double kNear = 0.05;

struct Case {
  std::string text;
  planner::RunConfig question = planner::RunConfig::for_plan();
};

// Returns random settings without invalid ones.
class Cases {
 public:
  Case next() {
    for (;;) {
      Case one;
      planner::RunConfig settings = planner::RunConfig::for_plan();
      const auto set = [&](const char* key, std::string value) {
        settings.set(key, value);
        one.text += " --" + std::string(key) + " " + value;
      };
      set("model", pick({"gpt2-xl", "gpt2-774m", "llama2-7b", "llama2-13b", "llama2-70b",
                         "gpt3-175b", "llama3-8b"}));
      set("hardware", pick({"h100", "a100-80", "h200", "v100-32"}));
      set("dp", pick({"1", "2", "4", "8", "16", "64", "256"}));
      set("tp", pick({"1", "1", "2", "4", "8"}));
      const std::string pp = pick({"1", "1", "2", "4", "8", "16"});
      set("pp", pp);
      if (pp != "1") set("schedule", pick({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}));
      set("zero", pick({"0", "1", "2", "3"}));
      set("grad-accum", pick({"1", "2", "3", "8", "16", "32", "64"}));
      set("micro-batch", pick({"1", "2", "4"}));
      set("recompute", pick({"none", "full"}));
      if (one_in(4)) set("overlap-grad-reduce", "false");
      if (one_in(4)) set("overlap-param-gather", "false");
      if (one_in(6)) set("keep-params", "true");
      if (one_in(5)) set("grad-reduce", pick({"each", "last"}));
      if (one_in(6)) set("bucket-size", pick({"1MB", "400MB"}));
      if (one_in(6)) set("order", pick({"dp,tp,pp", "tp,pp,dp", "pp,tp,dp"}));
      if (one_in(8)) set("split", "work");
      // Without a pipeline the two are equal, with any buckets and units.
      constexpr const char* kSoftware[] = {"megatron", "tessera", "pytorch"};
      if (pp == "1") set("software", kSoftware[software_() % 3]);
      try {
        one.question = planner::resolve(look_up(settings, catalog_));
        return one;
      } catch (const UsageError&) {
        // Such as tp that does not divide the heads, or fewer layers than stages.
      }
    }
  }

 private:
  std::string pick(std::initializer_list<const char*> from) {
    return *(from.begin() + static_cast<std::ptrdiff_t>(random_() % from.size()));
  }
  bool one_in(unsigned n) { return random_() % n == 0; }

  std::mt19937 random_{1}, software_{2};
  planner::Catalog catalog_;
};

// Returns the same settings with replicas; nullopt if replicas are impossible.
std::optional<Case> with_replicas(Case one, unsigned pick) {
  std::vector<int> counts;
  for (int n = 2; n <= one.question.dp(); ++n) {
    if (one.question.dp() % n == 0) counts.push_back(n);
  }
  if (one.question.zero == 0 || counts.empty()) return std::nullopt;
  const int replicas = counts[pick % counts.size()];
  one.question.axes.set_given(Axis::dp_replicate, replicas);
  one.text += " --dp-replicate " + std::to_string(replicas);
  return one;
}

// Returns the same settings with context parallelism; nullopt if its kind is impossible.
std::optional<Case> with_context(Case one, unsigned pick) {
  const int cp = 2 << pick % 3;
  const char* const kind = pick % 2 == 0 ? "ring" : "ulysses";
  planner::RunConfig& q = one.question;
  q.axes.set(Axis::cp, cp);
  q.cp_kind = *find_named<ContextKind>(kind);
  q.seq = 8192;
  q.gpus = q.nodes = 0;
  one.text += " --cp " + std::to_string(cp) + " --cp-kind " + kind + " --seq 8192";
  try {
    q = planner::resolve(std::move(q));
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return one;
}

// Returns the same settings with experts, imbalance and a number of expert-parallel ranks that
// divides those that shard state.
Case with_experts(Case one, unsigned pick) {
  planner::RunConfig& q = one.question;
  q.model.experts.count = 16, q.model.experts.per_token = 1 + pick % 3;
  q.model.experts.width = q.model.ffn;
  int ep = 1;
  while (ep < 16 && q.shards() % (2 * ep) == 0 && (pick >> ep & 1) == 0) ep *= 2;
  q.axes.set(Axis::ep, ep);
  q.expert_imbalance = 1 + pick % 4 * 0.25;
  one.text += " --experts 16 --ep " + std::to_string(ep) + " --expert-imbalance " +
              std::to_string(q.expert_imbalance);
  one.question = planner::resolve(std::move(q));
  return one;
}

TEST(Agreement, PlannerAndSimulatorDifferByAtMost5PercentOrExplainWhy) {
  Cases cases;
  int apart = 0;
  double sum = 0;
  for (int i = 0; i < kConfigurations; ++i) {
    const Case one = cases.next();
    const Scenario scenario = scenario_of(one.question);
    const double planned = planner::step_time(one.question).step();
    const Result result = simulate(scenario, {.by_events = true});
    EXPECT_NEAR(result.mean.step(), result.step, 1e-9 * result.step) << one.text;
    const double error = std::abs(planned / result.step - 1);
    sum += error;
    if (one.question.pp() == 1) {
      EXPECT_LT(error, 1e-3) << one.text;  // the same clock; long steps are extrapolated
    }
    if (error <= kNear) continue;
    ++apart;
    const Agreement agreement = agreement_of(scenario, result);
    EXPECT_NEAR(agreement.planned, planned, 1e-12 * planned);
    const double left = result.step - planned - agreement.largest().seconds;
    EXPECT_LT(std::abs(left), kNear * result.step) << one.text << ": " << reason(agreement);
    std::printf("%5.1f%% apart, %s\n   %s\n", 100 * agreement.apart(), reason(agreement).c_str(),
                one.text.c_str());
  }
  std::printf("%d of %d configurations more than 5%% apart, %.2f%% in the mean\n", apart,
              kConfigurations, 100 * sum / kConfigurations);
  EXPECT_LE(apart, kConfigurations / 50);
}

// Ranks that share the cores of a processor.
TEST(Agreement, HoldsForRanksThatShareCores) {
  for (const char* pp : {"1", "2", "4"}) {
    for (const int cores : {1, 2, 4}) {
      for (const char* schedule : {"1f1b", "gpipe"}) {
        planner::RunConfig settings = planner::RunConfig::for_plan();
        for (const auto& [key, value] : {std::pair{"model", "gpt-tiny"},
                                         {"hardware", "cpu"},
                                         {"dp", "2"},
                                         {"pp", pp},
                                         {"schedule", schedule},
                                         {"grad-accum", "4"},
                                         {"layout", "fp32"}}) {
          settings.set(key, value);
        }
        planner::RunConfig q = look_up(settings, planner::Catalog());
        q.hardware.units = 1, q.hardware.per_node = 8;
        const double all = planner::step_time(planner::resolve(q)).step();
        q.hardware.cores = cores;
        const Scenario scenario = scenario_of(planner::resolve(q));
        const double planned = planner::step_time(scenario).step();
        EXPECT_NEAR(simulate(scenario, {.by_events = true}).step / planned, 1, kNear);
        EXPECT_LE(planned, all * (1 + 1e-9)) << pp << " " << cores;
      }
    }
  }
}

// All-to-alls of experts are the planner's, on the links of ep.
TEST(Agreement, HoldsForExperts) {
  Cases cases;
  int compared = 0, exchanged = 0, across = 0, apart = 0;
  for (unsigned i = 0; i < 300; ++i) {
    const Case one = with_experts(cases.next(), i);
    if (one.question.micros() > 16) continue;
    const Scenario scenario = scenario_of(one.question);
    const planner::StepTime planned = planner::step_time(scenario);
    const Result result = simulate(scenario, {.by_events = true});
    EXPECT_NEAR(result.mean.step(), result.step, 1e-9 * result.step) << one.text;
    EXPECT_LE(planner::least_step_time(scenario), planned.step() * (1 + 1e-9)) << one.text;
    if (one.question.pp() == 1) {
      EXPECT_NEAR(planned.step(), result.step, 1e-3 * result.step) << one.text;
      EXPECT_NEAR(planned.comm[Axis::ep], result.mean.comm[Axis::ep], 1e-9 * result.step)
          << one.text;
    } else if (std::abs(planned.step() / result.step - 1) > kNear) {
      ++apart;
      const Agreement agreement = agreement_of(scenario, result);
      const double left = result.step - planned.step() - agreement.largest().seconds;
      EXPECT_LT(std::abs(left), kNear * result.step) << one.text << ": " << reason(agreement);
    }
    EXPECT_EQ(planned.comm[Axis::ep] > 0, one.question.ep() > 1) << one.text;
    ++compared;
    exchanged += one.question.ep() > 1 ? 1 : 0;
    across += scenario.places().along[Axis::ep].nodes() > 1 ? 1 : 0;
  }
  EXPECT_GT(compared, 150);
  EXPECT_GT(exchanged, 50);
  EXPECT_GT(across, 10);
  EXPECT_LE(apart, compared / 20);
}

TEST(Agreement, HoldsForReplicas) {
  Cases cases;
  int compared = 0, exposed = 0, shared = 0;
  for (unsigned i = 0; i < 400; ++i) {
    const auto one = with_replicas(cases.next(), i);
    if (!one || one->question.micros() > 16) continue;
    const Scenario scenario = scenario_of(one->question);
    const planner::StepTime planned = planner::step_time(scenario);
    const Result result = simulate(scenario, {.by_events = true});
    EXPECT_NEAR(result.mean.step(), result.step, 1e-9 * result.step) << one->text;
    EXPECT_LE(planner::least_step_time(scenario), planned.step() * (1 + 1e-9)) << one->text;
    if (one->question.pp() == 1) {
      EXPECT_NEAR(planned.step(), result.step, 1e-3 * result.step) << one->text;
      for (const Axis axis : {Axis::dp_shard, Axis::dp_replicate}) {
        EXPECT_NEAR(planned.comm[axis], result.mean.comm[axis], 1e-3 * result.step) << one->text;
      }
    } else {
      const Agreement agreement = agreement_of(scenario, result);
      const double left = result.step - planned.step() - agreement.largest().seconds;
      EXPECT_LT(std::abs(left), kNear * result.step) << one->text << ": " << reason(agreement);
    }
    ++compared;
    exposed += planned.comm[Axis::dp_replicate] > 0.01 * planned.step() ? 1 : 0;
    shared += scenario.shares_links(scenario.places()) ? 1 : 0;
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(exposed, 20);
  EXPECT_GT(shared, 20);
  EXPECT_LT(shared, compared - 20);
}

TEST(Agreement, LockstepOfReplicasEqualsEvents) {
  Cases cases;
  int compared = 0;
  for (unsigned i = 0; compared < 150; ++i) {
    const auto one = with_replicas(cases.next(), i);
    if (!one || one->question.pp() > 1 || one->question.dp() > 64 || one->question.micros() > 8) {
      continue;
    }
    Scenario scenario = scenario_of(one->question);
    scenario.seed = i;
    if (compared % 3 != 0) scenario.jitter = 0.1;
    if (compared % 3 == 1) scenario.stragglers = {{0, 1.5}};
    const Result quick = simulate(scenario, {.full = true});
    const Result events = simulate(scenario, {.full = true, .by_events = true});
    EXPECT_NEAR(quick.step, events.step, 1e-12 * events.step) << one->text;
    for (std::size_t d = 0; d < quick.ranks.size(); ++d) {
      const RankTime &a = quick.ranks[d], &b = events.ranks[d];
      EXPECT_NEAR(a.compute, b.compute, 1e-12 * events.step) << one->text;
      EXPECT_NEAR(a.bubble, b.bubble, 1e-12 * events.step) << one->text;
      for (const Axis axis : kAllAxes) {
        EXPECT_NEAR(a.comm[axis], b.comm[axis], 1e-11 * events.step) << one->text;
        EXPECT_NEAR(a.sent[axis], b.sent[axis], 1e-9 * b.sent[axis]) << one->text;
      }
    }
    ++compared;
  }
}

// Without a pipeline the members of a group are simulated piece by piece instead of by events.
TEST(Agreement, LockstepEqualsEvents) {
  Cases cases;
  int compared = 0;
  while (compared < 150) {
    const Case one = cases.next();
    if (one.question.pp() > 1 || one.question.dp() > 64 || one.question.micros() > 8) continue;
    Scenario scenario = scenario_of(one.question);
    scenario.seed = static_cast<std::uint64_t>(compared);
    if (compared % 3 != 0) scenario.jitter = 0.1;
    if (compared % 3 == 1) scenario.stragglers = {{0, 1.5}};
    const Result quick = simulate(scenario, {.full = true});
    const Result events = simulate(scenario, {.full = true, .by_events = true});
    EXPECT_EQ(quick.events, 0U);
    ASSERT_GT(events.events, 0U);
    EXPECT_NEAR(quick.step, events.step, 1e-12 * events.step) << one.text;
    ASSERT_EQ(quick.ranks.size(), events.ranks.size());
    for (std::size_t d = 0; d < quick.ranks.size(); ++d) {
      const RankTime &a = quick.ranks[d], &b = events.ranks[d];
      EXPECT_NEAR(a.compute, b.compute, 1e-12 * events.step) << one.text;
      EXPECT_NEAR(a.comm[Axis::tp], b.comm[Axis::tp], 1e-12 * events.step) << one.text;
      EXPECT_NEAR(a.comm[Axis::dp_shard], b.comm[Axis::dp_shard], 1e-11 * events.step) << one.text;
      EXPECT_NEAR(a.bubble, b.bubble, 1e-12 * events.step) << one.text;
      EXPECT_NEAR(a.sent[Axis::dp_shard], b.sent[Axis::dp_shard], 1e-9 * b.sent[Axis::dp_shard])
          << one.text;
    }
    ++compared;
  }
}

TEST(Agreement, ContextParallelStepsAreSimulatedAsPlanned) {
  Cases cases;
  int simulated = 0;
  for (unsigned i = 0; simulated < 150; ++i) {
    const std::optional<Case> one = with_context(cases.next(), i);
    if (!one || one->question.micros() > 16) continue;
    ++simulated;
    const Scenario scenario = scenario_of(one->question);
    const planner::StepTime planned = planner::step_time(one->question);
    const Result result = simulate(scenario, {.by_events = true});
    EXPECT_NEAR(result.mean.step(), result.step, 1e-9 * result.step) << one->text;
    if (one->question.pp() > 1) {
      const Agreement agreement = agreement_of(scenario, result);
      const double left = result.step - planned.step() - agreement.largest().seconds;
      EXPECT_LT(std::abs(left), kNear * result.step) << one->text << ": " << reason(agreement);
      continue;
    }
    EXPECT_LT(std::abs(planned.step() / result.step - 1), 1e-3) << one->text;
    EXPECT_NEAR(planned.comm[Axis::cp], result.mean.comm[Axis::cp], 1e-9 * result.step)
        << one->text;
    // The simulated buckets of Tessera are padded to whole shards of up to 2,048 ranks.
    const double sent = planner::traffic_of(one->question).sent[Axis::dp_shard];
    EXPECT_NEAR(sent, result.mean.sent[Axis::dp_shard], 1e-2 * sent) << one->text;
  }
}

}  // namespace
}  // namespace tessera::simulator
