// Every command of `tessera checkpoint` on every hostile checkpoint: an error with a reason, or the
// right result; never a crash, a hang, or more memory than a small program needs.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tests/checkpoint/hostile.h"
#include "tests/checkpoint/ranks.h"
#include "tests/processes.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// A sanitizer reserves terabytes of addresses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr rlim_t kMemory = RLIM_INFINITY;
constexpr std::size_t kEvery = 8;  // and each start is much slower
#else
constexpr rlim_t kMemory = rlim_t{2} << 30;
constexpr std::size_t kEvery = 1;
#endif

Outcome bounded(Words words) {
  words.insert(words.begin(), {TESSERA_PROGRAM, "checkpoint"});
  return outcome_of(words, [] {
    const rlimit limit{kMemory, kMemory};
    ::setrlimit(RLIMIT_AS, &limit);
  });
}

TEST(HostileCheckpoints, CommandsNeverCrashOrHang) {
  const TemporaryFolder dir;
  const checkpoint::Model model = checkpoint::small_model();
  checkpoint::save_model(model, dir / "run", 10, "dp=2", true);
  const std::string good = checkpoint::save_model(model, dir / "good", 20, "dp=2", true);
  const std::string bad = dir / "run/step-00000020";
  const std::string one = dir / "one";
  int runs = 0, refusals = 0;
  const std::vector<checkpoint::Hostile> all = checkpoint::hostile_checkpoints();
  EXPECT_GT(all.size(), 250u);
  for (std::size_t i = 0; i < all.size(); i += kEvery) {
    const checkpoint::Hostile& hostile = all[i];
    if (hostile.large && kMemory == RLIM_INFINITY) continue;
    for (const std::string& folder : {bad, one}) fs::remove_all(folder);
    fs::copy(good, bad);
    hostile.spoil(bad);
    std::vector<Words> commands = {{"verify", bad}, {"reshard", bad, one, "--dp", "3"}};
    // The other commands alternate: adjacent checkpoints are damaged in similar ways.
    const std::vector<Words> others = {{"inspect", bad},
                                       {"inspect", bad, "--params", "--json"},
                                       {"verify", bad, "--sha256", "--json"},
                                       {"diff", bad, good},
                                       {"export", bad, dir / "model"}};
    commands.push_back(others[i / kEvery % others.size()]);
    bool verified = false;
    for (const Words& words : commands) {
      const Outcome outcome = bounded(words);
      ++runs;
      const std::string what = hostile.name + ": " + words[0] + "\n" + outcome.out + outcome.err;
      ASSERT_TRUE(outcome.status >= 0 && outcome.status <= 2) << outcome.status << " " << what;
      refusals += outcome.status != 0 ? 1 : 0;
      if (words[0] == "verify") verified = outcome.status == 0;
      if (outcome.status == 0) continue;
      const std::string said = outcome.err + outcome.out;
      EXPECT_GT(said.size(), 20u) << what;
      EXPECT_EQ(said.find("std::"), std::string::npos) << what;
      EXPECT_LT(said.size(), 4000u) << what;
    }
    EXPECT_FALSE(hostile.refused && verified) << hostile.name << ": verify found nothing";
    // A search for the newest valid checkpoint finds one.
    const Outcome newest = bounded({"inspect", dir / "run"});
    EXPECT_EQ(newest.status, 0) << hostile.name << "\n" << newest.err;
    EXPECT_FALSE(fs::exists(dir / "one/.tmp-step-00000020"));
  }
  std::cout << all.size() << " checkpoints, " << runs << " commands, " << refusals << " refused\n";
}

}  // namespace
}  // namespace tessera::cli
