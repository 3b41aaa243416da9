#include "tessera/process/step_watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace tessera::process {
namespace {

using namespace std::chrono_literals;

// Waits for a number to be reached, as long as a stuck test may.
bool reaches(const std::atomic<int>& value, int wanted) {
  const auto end = std::chrono::steady_clock::now() + 100s;
  while (value < wanted && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  return value >= wanted;
}

TEST(StepWatchdog, TellsOfAStepThatHangsOnceAndThenGivesUp) {
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

TEST(StepWatchdog, AReportThatThrowsEndsNothing) {
  std::atomic<int> reports{0}, given_up{0};
  StepWatchdog dog(
      {.report_after = 3, .give_up_after = 5, .least = 0.02, .least_give_up = 0.04, .enough = 3},
      {[&](const std::string&) {
         ++reports;
         throw std::runtime_error("nobody listens");
       },
       [&](const std::string&) { ++given_up; }});
  for (int step = 1; step <= 3; ++step) {
    dog.begin(step);
    dog.end();
  }
  dog.begin(4);
  EXPECT_TRUE(reaches(given_up, 1));  // the watchdog still watches
  dog.end();
  EXPECT_EQ(reports, 1);
}

TEST(StepWatchdog, SaysNothingBeforeItKnowsWhatIsUsual) {
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

TEST(StepWatchdog, TellsOfAFirstStepThatHangsAndDoesNotGiveItUp) {
  std::atomic<int> reports{0}, given_up{0};
  std::string said;
  {
    StepWatchdog dog({.least_give_up = 0, .enough = 100, .first = 0.01},
                     {[&](const std::string& what) { said = what, ++reports; },
                      [&](const std::string&) { ++given_up; }});
    dog.begin(1);
    EXPECT_TRUE(reaches(reports, 1));
    dog.end();
    dog.begin(2);
    EXPECT_TRUE(reaches(reports, 2));  // and the next one that does
    dog.end();
  }
  EXPECT_EQ(given_up, 0);
  EXPECT_EQ(said.rfind("step 2 has taken", 0), 0U) << said;
}

}  // namespace
}  // namespace tessera::process
