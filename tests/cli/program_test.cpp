// The programs themselves, as a user calls them.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/version.h"
#include "tests/cli/processes.h"

namespace tessera::cli {
namespace {

struct Outcome {
  int status;
  std::string out, err;
};

Outcome tessera(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TESSERA_PROGRAM);
  Capture out, err;
  const int status = execute(arguments, out, err);
  return {status, out.text(), err.text()};
}

TEST(Program, HelpListsEveryCommand) {
  const Outcome help = tessera({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(contains(help.out, "Examples"));
  for (const std::string& name : command_names()) EXPECT_TRUE(contains(help.out, "  " + name));
}

TEST(Program, Version) {
  const Outcome version = tessera({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(contains(version.out, TESSERA_VERSION));
}

TEST(Program, MistakesAreStatus2WithASuggestionAndNothingOnStdout) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "Usage"},
      {{"dcotor"}, "did you mean doctor?"},
      {{"--hepl"}, "did you mean --help?"},
      {{"completion", "bahs"}, "did you mean bash?"},
      {{"elephant"}, "unknown command"}};
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

TEST(Program, CompletionKnowsTheCommands) {
  const Outcome script = tessera({"completion", "bash"});
  EXPECT_EQ(script.status, 0);
  for (const std::string& name : command_names()) EXPECT_TRUE(contains(script.out, name));
}

TEST(Program, WithoutTheTorchProgramItSaysSo) {
  // A copy alone in a folder has no sibling to execute.
  std::string folder = (std::filesystem::temp_directory_path() / "tessera-alone-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string copy = folder + "/tessera";
  std::filesystem::copy_file(TESSERA_PROGRAM, copy);
  Capture out, err;
  EXPECT_EQ(execute({copy, "doctor"}, out, err), 1);
  EXPECT_EQ(out.text(), "");
  EXPECT_TRUE(contains(err.text(), folder + "/tessera-torch")) << err.text();
  std::filesystem::remove_all(folder);
}

class TorchProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without LibTorch";
  }
};

TEST_F(TorchProgram, HelpOfEveryCommandHasExamples) {
  for (const std::string& name : command_names()) {
    const Outcome help = tessera({name, "--help"});
    EXPECT_EQ(help.status, 0) << name << help.err;
    EXPECT_TRUE(contains(help.out, "Examples")) << name;
    EXPECT_EQ(tessera({"help", name}).out, help.out);
  }
}

TEST_F(TorchProgram, RunStartsRanksThatReachTheStore) {
  const Outcome run = tessera(
      {"run", "-n", "3", "--", "bash", "-c",
       "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo rank $RANK of $WORLD_SIZE connects"});
  EXPECT_EQ(run.status, 0) << run.err;
  for (const char* line :
       {"[0] rank 0 of 3 connects\n", "[1] rank 1 of 3 connects\n", "[2] rank 2 of 3 connects\n"}) {
    EXPECT_TRUE(contains(run.out, line)) << run.out;
  }
}

TEST_F(TorchProgram, RunReturnsTheStatusAndRefusesMistakes) {
  EXPECT_EQ(tessera({"run", "-n", "2", "--", "sh", "-c", "exit 9"}).status, 9);
  EXPECT_EQ(tessera({"run", "-n", "2", "--", "./no-such-program"}).status, 127);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", "--rnaks", "2", "--", "true"}, "--rnaks: unknown; did you mean --ranks?"},
      {{"run", "-n", "2"}, "no program to run"},
      {{"run", "-n", "0", "--", "true"}, "got 0, wanted 1 to"},
      {{"bench", "comm", "--ranks", "0"}, "got 0, wanted 2 to"},
      {{"calibrate", "--ranks", "0"}, "got 0, wanted 1 to"},
      {{"run", "--", "true"}, "--ranks is required"},
      {{"run", "-n", "2", "--nodes", "2", "--", "true"}, "--master-addr"},
      {{"run", "-n", "2", "--node-rank", "1", "--", "true"}, "--node-rank is 1"}};
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

TEST_F(TorchProgram, DoctorReportsInBothForms) {
  const Outcome text = tessera({"doctor"});
  EXPECT_EQ(text.status, 0) << text.out << text.err;
  EXPECT_TRUE(contains(text.out, "Backends"));
  const Outcome json = tessera({"doctor", "--json"});
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out)["versions"]["tessera"], TESSERA_VERSION);
}

}  // namespace
}  // namespace tessera::cli
