// Context parallelism: the time of a step, searches and advice.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/planner/fields.h"
#include "tessera/planner/json.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/search.h"
#include "tessera/planner/step_time.h"
#include "tests/planner/advised_case.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

RunConfig settings_of(const std::string& flags) {
  return look_up(with_flags(RunConfig::for_plan(), flags), built_in());
}
RunConfig run_of(const std::string& flags) { return resolve(settings_of(flags)); }

// A layer's transfers, and the attention of a block, in seconds.
struct LayerTimes {
  explicit LayerTimes(const RunConfig& q) {
    const Places on = places(q);
    for (const Operation& op : layer_program(program_input(q), ProgramPart::layer).operations) {
      if (op.kind == OpKind::attention) {
        block = fused_attention_time(q.hardware, element_bytes(q), op.forward.attention_flops) +
                pass_time(q.hardware, op.forward.bytes);
        block_back =
            fused_attention_time(q.hardware, element_bytes(q), op.backward_input.attention_flops) +
            pass_time(q.hardware, op.backward_input.bytes);
        block /= q.cp(), block_back /= q.cp();
      }
      for (const Communication& send : op.sends) {
        if (send.axis != Axis::cp) continue;
        const double seconds =
            on.seconds(send.kind, send.elements * send.element, on.along[Axis::cp]);
        (send.backward ? backward : forward) += seconds;
        if (send.row == Sent::ring_gradients) gradients += seconds;
      }
    }
  }
  double block = 0, block_back = 0, forward = 0, backward = 0;
  double gradients = 0;  // of `backward`
};

RunConfig without_launches(RunConfig q) {
  q.hardware.launch = q.hardware.kernel_start = q.hardware.launch_skew = 0;
  return q;
}

TEST(ContextTime, RingExposesTransfersLongerThanAttention) {
  bool hidden = false, exposed = false;
  for (const char* seq : {"4096", "16384", "131072"}) {
    for (const int cp : {2, 4, 8}) {
      for (const char* recompute : {"none", "full"}) {
        for (const double slower : {1.0, 8.0, 64.0}) {
          RunConfig q = without_launches(
              run_of(std::string("--model llama3-8b --hardware h100 --cp-kind ring --recompute ") +
                     recompute + " --seq " + seq + " --cp " + std::to_string(cp)));
          q.hardware.inside.bandwidth /= slower;
          const LayerTimes t(q);
          const double forward = std::max(0.0, t.forward - t.block) * (cp - 1);
          const double backward =
              exposed_ring(cp, t.block_back, t.backward - t.gradients, t.gradients);
          const double passes = q.recompute == Recompute::full ? 2 : 1;
          const double layers = static_cast<double>(q.model.layers * q.micros());
          const StepTime time = step_time(q);
          const double want = layers * (passes * forward + backward);
          EXPECT_NEAR(time.comm[Axis::cp], want, 1e-9 * time.step()) << seq << " " << cp;
          hidden = hidden || forward == 0;
          exposed = exposed || forward > 0;
        }
      }
    }
  }
  EXPECT_TRUE(hidden && exposed);
}

// Timelines by hand, for blocks of 10 s.
TEST(ContextTime, MessagesOfARingAreExposedAsTheirOrderSays) {
  EXPECT_EQ(exposed_ring(1, 10, 0, 0), 0);
  for (const int ranks : {2, 3, 8}) {
    EXPECT_EQ(exposed_ring(ranks, 10, 10, 0), 0);
    EXPECT_EQ(exposed_ring(ranks, 10, 13, 0), 3 * (ranks - 1));
    // Everything is hidden but the last gradients.
    EXPECT_EQ(exposed_ring(ranks, 10, 4, 6), 6);
    // The link is never idle once it starts.
    EXPECT_EQ(exposed_ring(ranks, 0, 4, 6), 10 * (ranks - 1));
  }
  // 2 ranks: keys arrive at 14, and gradients leave at 24.
  EXPECT_EQ(exposed_ring(2, 10, 14, 6), 30 - 20);
  // 3 ranks: keys arrive at 14 and 28. Gradients leave at 24, wait for the link until 28 and arrive
  // at 34; the last leave at 38 and arrive at 44.
  EXPECT_EQ(exposed_ring(3, 10, 14, 6), 44 - 30);
  // 4 ranks: keys arrive at 8, 18 and, because the gradients of 20 have the link until 28, at 36.
  // The next gradients wait for them and arrive at 44; the last leave at 46.
  EXPECT_EQ(exposed_ring(4, 10, 8, 8), 54 - 40);
}

TEST(ContextTime, AllToAllsAreNotOverlapped) {
  for (const int cp : {2, 4, 8}) {
    const RunConfig q =
        without_launches(run_of("--model llama3-8b --hardware h100 --cp-kind ulysses --seq 32768 "
                                "--cp " +
                                std::to_string(cp)));
    const LayerTimes t(q);
    const double want = static_cast<double>(q.model.layers) * (t.forward + t.backward);
    EXPECT_NEAR(step_time(q).comm[Axis::cp], want, 1e-9 * want);
  }
}

TEST(ContextTime, OneRankHasTheSamePlanWithEitherKind) {
  for (const char* flags :
       {"--model gpt2-xl --dp 8 --hardware h100 --zero 1", "--model llama3-8b --dp 4 --tp 2",
        "--model llama2-7b --pp 4 --grad-accum 8 --recompute full"}) {
    const std::string ring =
        to_json(make_plan(settings_of(std::string(flags) + " --cp-kind ring")));
    EXPECT_EQ(ring, to_json(make_plan(settings_of(std::string(flags) + " --cp-kind ulysses"))));
    EXPECT_EQ(ring, to_json(make_plan(settings_of(std::string(flags) + " --cp 1"))));
  }
}

TEST(ContextTime, StepsAddUpAndLowerBoundsHold) {
  for (const char* flags : {"--dp 2 --cp 4", "--dp 2 --cp 4 --zero 3", "--cp 8 --tp 2",
                            "--cp 2 --pp 2 --grad-accum 8", "--dp 8 --cp 4 --zero 2"}) {
    for (const char* kind : {"ring", "ulysses"}) {
      const RunConfig q =
          run_of(std::string("--model llama3-8b --hardware h100 --seq 32768 --cp-kind ") + kind +
                 " " + flags);
      const Step step = describe_step(q);
      const StepTime time = step_time(step);
      EXPECT_LE(least_step_time(step), time.step() * (1 + 1e-9)) << flags;
      EXPECT_GT(time.compute, 0);
      EXPECT_NEAR(time.step(), time.compute + time.exposed() + time.bubble + time.optimizer,
                  1e-12 * time.step());
    }
  }
}

TEST(ContextSearch, ProposesCpForLongSequencesOnly) {
  const auto search_for = [](const std::string& flags) {
    SearchRequest ask = search_request(with_flags(RunConfig::for_plan(), flags), built_in());
    return search(ask);
  };
  for (const Plan& plan :
       search_for("--model gpt2-xl --gpus 8 --hardware h100 --global-batch 16").best) {
    EXPECT_EQ(plan.question.cp(), 1);  // 1,024 tokens
  }
  // One sequence does not fit on a rank.
  const SearchResult found =
      search_for("--model llama3-8b --gpus 8 --hardware h100 --global-batch 1 --seq 131072 --tp 1");
  ASSERT_FALSE(found.best.empty());
  EXPECT_GT(found.best.front().question.cp(), 1);
  EXPECT_EQ(found.best.front().question.world(), 8);
  for (const Plan& plan :
       search_for("--model llama3-8b --gpus 8 --hardware h100 --global-batch 8 --cp 2").best) {
    EXPECT_EQ(plan.question.cp(), 2);
  }
}

TEST(ContextAdvice, ProposesCpForSequencesThatDoNotFit) {
  const Plan plan =
      make_plan(settings_of("--model llama3-8b --hardware h100 --dp 8 --zero 3 --recompute full "
                            "--seq 1048576 --grad-accum 1"));
  ASSERT_FALSE(plan.fits);
  EXPECT_TRUE(contains(plan.remedy, "--cp ")) << plan.remedy;
  EXPECT_TRUE(contains(plan.remedy, " fits: ")) << plan.remedy;
  // With fewer sequences at once, on the same devices.
  const Plan shorter =
      make_plan(settings_of("--model llama3-8b --hardware h100 --dp 8 --zero 3 --recompute full "
                            "--seq 131072 --grad-accum 1"));
  EXPECT_TRUE(shorter.fits || contains(shorter.remedy, "--cp ")) << shorter.remedy;
}

TEST(ContextAdvice, ReportsTrafficBetweenHosts) {
  const Plan plan = make_plan(settings_of("--model llama3-8b --hardware h100 --cp 16 --seq 65536"));
  const bool said = std::any_of(plan.notes.begin(), plan.notes.end(), [](const std::string& note) {
    return contains(note, "cp 16 goes across hosts of 8 GPUs");
  });
  EXPECT_TRUE(said);
  EXPECT_EQ(places(plan.question).along[Axis::cp].nodes(), 2);
}

}  // namespace
}  // namespace tessera::planner
