// PassState without an engine: order of calls, and counts.

#include "tessera/zero/pass_state.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "tessera/core/errors.h"

namespace tessera::zero {
namespace {

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void expect_error(const std::function<void()>& call, const std::string& what_to_do) {
  EXPECT_NE(message(call).find(what_to_do), std::string::npos) << message(call);
}

TEST(PassState, ErrorsOfCallsOutOfOrderNameTheCallToMake) {
  PassState state({0, 2}, 2, ReducePolicy::last);
  expect_error([&] { state.reduces(0); }, "No step has begun");
  state.begin_step(2);
  expect_error([&] { state.begin_step(1); }, "0 of 2 micro-batches are done. Call step() first");
  expect_error([&] { state.begin_backward({.model_chunk = 2}); }, "must be 0 to 1");
  expect_error([&] { state.finish_pass(1); }, "deferred = true first");
  state.begin_backward({});
  expect_error([&] { state.begin_backward({}); }, "inside a backward pass of the same engine");
  expect_error([&] { state.check_step(); }, "inside a backward");
  state.end_backward();
  state.begin_backward({.deferred = true});
  state.end_backward();
  EXPECT_TRUE(state.deferred_open());
  expect_error([&] { state.begin_backward({}); }, "called 3 times, but a step has 2");
  expect_error([&] { state.check_step(); }, "Call finish_pass(0)");
  EXPECT_TRUE(state.finish_pass(0));
  EXPECT_FALSE(state.deferred_open());
  EXPECT_NO_THROW(state.check_step());
  state.end_step();
  EXPECT_FALSE(state.stepping());
}

TEST(PassState, RequiresDiscardAfterAFailedPass) {
  for (const ReducePolicy policy : {ReducePolicy::last, ReducePolicy::each}) {
    PassState state({1}, 1, policy);
    state.begin_step(2);
    state.begin_backward({});
    state.fail_backward();
    expect_error([&] { state.begin_backward({}); }, "Call discard()");
    expect_error([&] { state.check_step(); }, "Call discard()");
    state.close_failed();
    state.close_failed();  // only once
    // The pass counts as done: other ranks have sent its buckets.
    EXPECT_EQ(state.reductions_due(0), 1);
    state.end_step();
    state.begin_step(1);
    EXPECT_NO_THROW(state.begin_backward({}));
  }
}

TEST(PassState, UnitIsDoneAfterItsInputGradientsAndParameterGradients) {
  PassState state({0, 2}, 1, ReducePolicy::each);
  state.begin_step(1);
  state.enter_forward(0, true, false);
  for (int use = 0; use < 2; ++use) {
    state.enter_forward(1, true, true);
    state.leave_forward();
  }
  EXPECT_TRUE(state.in_forward());
  state.leave_forward();
  EXPECT_FALSE(state.in_forward());
  state.begin_backward({});
  EXPECT_EQ(state.uses(1), 2);
  state.left_backward(1);
  state.gradient_arrived(1);
  state.gradient_arrived(1);
  EXPECT_FALSE(state.unit_done(1)) << "its second use has not left";
  state.left_backward(1);
  EXPECT_TRUE(state.unit_done(1));
}

// Two forwards: a backward of both, or of one of them, which counts as the larger one.
TEST(PassState, CountsUsesInTheForwardsOfTheBackward) {
  PassState state({0, 1}, 1, ReducePolicy::each);
  state.begin_step(3);
  for (const int uses : {1, 3}) {
    state.enter_forward(0, true, false);
    for (int i = 0; i < uses; ++i) state.enter_forward(1, true, true), state.leave_forward();
    state.leave_forward();
  }
  state.begin_backward({.of_one_forward = true});
  EXPECT_EQ(state.uses(1), 3);
  state.end_backward();
  state.enter_forward(0, true, false);
  state.enter_forward(1, true, true);  // ends in an exception, and is not counted
  state.enter_forward(0, true, false);
  state.enter_forward(1, true, true);
  state.leave_forward();
  state.leave_forward();
  state.begin_backward({});
  EXPECT_EQ(state.uses(1), 1);
}

TEST(PassState, ReducesInTheFirstPassAfterNoSync) {
  PassState state({1}, 1, ReducePolicy::each);
  state.begin_step(2);
  state.enter_no_sync();
  EXPECT_FALSE(state.reduces(0));
  state.begin_backward({});
  state.end_backward();
  state.leave_no_sync();
  EXPECT_TRUE(state.reduces(0));
  EXPECT_EQ(state.reductions_due(0), 1);
  EXPECT_TRUE(state.take_ties());
  EXPECT_FALSE(state.take_ties());
}

// A rank joins the same number of reductions as the others, whatever passes it ran.
TEST(PassState, EveryRankJoinsTheSameNumberOfReductions) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const ReducePolicy policy = random() % 2 == 0 ? ReducePolicy::each : ReducePolicy::last;
    const int micro_batches = 1 + static_cast<int>(random() % 4);
    const int chunks = 1 + static_cast<int>(random() % 2);
    PassState state({1}, chunks, policy);
    for (int step = 0; step < 2; ++step) {
      state.begin_step(micro_batches);
      std::vector<int> reductions(static_cast<std::size_t>(chunks));
      const int calls = static_cast<int>(random() % 12);
      for (int call = 0; call < calls; ++call) {
        const int chunk = static_cast<int>(random() % static_cast<unsigned>(chunks));
        int& count = reductions[static_cast<std::size_t>(chunk)];
        try {
          if (random() % 3 == 0) {
            count += state.finish_pass(chunk) ? 1 : 0;
            continue;
          }
          const bool deferred = random() % 2 == 0, reduce = state.reduces(chunk) && !deferred;
          state.begin_backward({.model_chunk = chunk, .deferred = deferred});
          state.end_backward();
          count += reduce ? 1 : 0;
        } catch (const UsageError&) {
        }
      }
      for (int c = 0; c < chunks; ++c) {
        const int all = reductions[static_cast<std::size_t>(c)] + state.reductions_due(c);
        const int due = policy == ReducePolicy::each ? micro_batches : 1;
        EXPECT_EQ(all, due) << "round " << round << ", " << micro_batches << " micro-batches";
        state.all_reduced(c);
        EXPECT_EQ(state.reductions_due(c), 0);
      }
      state.end_step();
    }
  }
}

}  // namespace
}  // namespace tessera::zero
