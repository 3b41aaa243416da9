#include "tessera/process/step_watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace tessera::process {
namespace {

using namespace std::chrono_literals;

// Waits until `value` reaches `wanted`. Returns false after 100 s.
bool reaches(const std::atomic<int>& value, int wanted) {
  const auto end = std::chrono::steady_clock::now() + 100s;
  while (value < wanted && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  return value >= wanted;
}

TEST(StepWatchdog, ReportsAHangingStepOnceAndThenGivesUp) {
  std::atomic<int> reports{0}, given_up{0};
  std::string text;
  {
    StepWatchdog dog(
        {.report_after = 3, .give_up_after = 5, .least = 0.02, .least_give_up = 0.04, .enough = 3},
        {[&](const std::string& what) {
           text = what;
           ++reports;
         },
         [&](const std::string&) { ++given_up; }});
    for (int step = 1; step <= 3; ++step) {
      dog.begin(step);
      dog.end();
    }
    EXPECT_EQ(reports, 0);
    dog.begin(4);
    EXPECT_TRUE(reaches(given_up, 1));
    dog.end();
    dog.begin(5);
    EXPECT_TRUE(reaches(given_up, 2));
    dog.end();
  }
  EXPECT_EQ(reports, 2);
  EXPECT_NE(text.find("step 5 has taken"), std::string::npos) << text;
}

TEST(StepWatchdog, SurvivesACallbackThatThrows) {
  std::atomic<int> reports{0}, given_up{0};
  StepWatchdog dog(
      {.report_after = 3, .give_up_after = 5, .least = 0.02, .least_give_up = 0.04, .enough = 3},
      {[&](const std::string&) {
         ++reports;
         throw std::runtime_error("callback failed");
       },
       [&](const std::string&) { ++given_up; }});
  for (int step = 1; step <= 3; ++step) {
    dog.begin(step);
    dog.end();
  }
  dog.begin(4);
  EXPECT_TRUE(reaches(given_up, 1));  // the watchdog still runs
  dog.end();
  EXPECT_EQ(reports, 1);
}

TEST(StepWatchdog, ReportsNothingBeforeThereIsAMedian) {
  std::atomic<int> reports{0};
  {
    StepWatchdog dog(
        {.report_after = 1, .give_up_after = 2, .least = 0, .least_give_up = 0, .enough = 100},
        {[&](const std::string&) { ++reports; }, nullptr});
    dog.begin(1);
    std::this_thread::sleep_for(30ms);
    dog.end();
  }
  EXPECT_EQ(reports, 0);
}

TEST(StepWatchdog, ReportsHangingFirstStepsWithoutGivingUp) {
  std::atomic<int> reports{0}, given_up{0};
  std::string message;
  {
    StepWatchdog dog({.least_give_up = 0, .enough = 100, .first = 0.01},
                     {[&](const std::string& what) { message = what, ++reports; },
                      [&](const std::string&) { ++given_up; }});
    dog.begin(1);
    EXPECT_TRUE(reaches(reports, 1));
    dog.end();
    dog.begin(2);
    EXPECT_TRUE(reaches(reports, 2));  // each hanging step is reported
    dog.end();
  }
  EXPECT_EQ(given_up, 0);
  EXPECT_EQ(message.rfind("step 2 has taken", 0), 0U) << message;
}

}  // namespace
}  // namespace tessera::process
