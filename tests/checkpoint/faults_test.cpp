// After any failure or crash, the old or the new checkpoint loads.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "tessera/checkpoint/async.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/checkpoint/faults.h"
#include "tests/checkpoint/ranks.h"
#include "tests/sanitized.h"
#include "tests/text.h"

namespace tessera::checkpoint {
namespace {

Model model_of_seed(std::uint64_t seed) {
  Model model;
  model.params = {{"a", {40, 2}, {{Axis::tp, 0}}}, {"b", {5}}};
  model.states = {{"param", DType::f32}, {"moment1", DType::bf16}};
  model.seed = seed;
  return model;
}

// Returns names in the folder that a finished save does not leave.
std::vector<std::string> leftovers(const std::string& dir) {
  std::vector<std::string> found;
  for (const std::string& name : local_files()->list(dir)) {
    if (name[0] == '.') found.push_back(name);
  }
  return found;
}

// Saves step `step` of `model` on three ranks that share a faulty file system.
std::vector<std::string> try_save(const Model& model, const std::string& dir, std::int64_t step,
                                  const std::shared_ptr<FileSystem>& files,
                                  const Retention& retention = {}) {
  const Axes mesh("dp=3");
  Ranks ranks(3);
  return ranks.run([&](const Team& team) {
    const RankState state = make_rank(model, mesh, team.rank, true, Copies::counted, true);
    save(dir, describe_model(model, step, mesh, 2), state.shards, team, {retention, files, {}});
  });
}

struct Scenario {
  const char* name;
  std::int64_t step;  // saved while step 1 exists
  Retention retention;
};
const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"a new step", 2, {}}, {"the newest only", 2, {1, 0}}, {"the same step again", 1, {}}};
  return all;
}

TEST(Faults, SurvivesACrashAtEveryOperation) {
  int crashes = 0;
  for (const Scenario& scenario : scenarios()) {
    for (const int forgets : {0, 1, 2, 3}) {
      if (tessera::testing::kSanitized && forgets != 3) continue;
      bool struck = true;
      for (int at = 1; struck; ++at) {
        SCOPED_TRACE(str(scenario.name, ", operation ", at, ", forgets ", forgets));
        const QuickFolder dir;
        save_model(model_of_seed(1), dir.path, 1, "dp=2", true);
        const auto files = std::make_shared<FaultyFiles>(
            Fault{Fault::Kind::crash, at, (forgets & 1) != 0, (forgets & 2) != 0});
        try_save(model_of_seed(2), dir.path, scenario.step, files, scenario.retention);
        struck = files->struck();
        crashes += struck;
        // A new process finds the newest checkpoint.
        const Latest latest = find_latest(dir.path, true);
        ASSERT_NE(latest.folder, "");
        EXPECT_TRUE(latest.skipped.empty()) << latest.skipped[0];
        Checkpoint checkpoint(latest.folder);
        const bool is_old = load_and_compare(model_of_seed(1), checkpoint, "dp=2", true).empty();
        const bool is_new = load_and_compare(model_of_seed(2), checkpoint, "dp=2", true).empty();
        ASSERT_TRUE(is_old != is_new);
        EXPECT_TRUE(struck || is_new);
        EXPECT_EQ(checkpoint.about().step, is_new ? scenario.step : 1);
        // The next save works and removes leftovers.
        save_model(model_of_seed(3), dir.path, 3, "dp=1", true);
        EXPECT_EQ(leftovers(dir.path), std::vector<std::string>{});
        Checkpoint next(dir / "step-00000003");
        EXPECT_EQ(load_and_compare(model_of_seed(3), next, "dp=1", true), "");
      }
    }
  }
  std::cout << crashes << " crashes survived\n";
  EXPECT_GT(crashes, tessera::testing::kSanitized ? 50 : 200);
}

TEST(Faults, SurvivesAFailureOfEveryOperation) {
  for (const Scenario& scenario : scenarios()) {
    bool struck = true;
    for (int at = 1; struck; ++at) {
      SCOPED_TRACE(str(scenario.name, ", operation ", at));
      const QuickFolder dir;
      save_model(model_of_seed(1), dir.path, 1, "dp=2", true);
      const auto files = std::make_shared<FaultyFiles>(Fault{Fault::Kind::error, at});
      const auto errors =
          try_save(model_of_seed(2), dir.path, scenario.step, files, scenario.retention);
      struck = files->struck();
      const bool failed = !errors[0].empty();
      for (const std::string& error : errors) {
        ASSERT_EQ(!error.empty(), failed) << "all ranks fail, or none";
        EXPECT_TRUE(!failed || contains(error, "No space left")) << error;
      }
      const Latest latest = find_latest(dir.path, true);
      ASSERT_NE(latest.folder, "");
      Checkpoint checkpoint(latest.folder);
      const bool is_old = load_and_compare(model_of_seed(1), checkpoint, "dp=2", true).empty();
      const bool is_new = load_and_compare(model_of_seed(2), checkpoint, "dp=2", true).empty();
      ASSERT_TRUE(is_old != is_new);
      EXPECT_TRUE(failed || is_new);
      save_model(model_of_seed(3), dir.path, 3, "dp=1", true);
      EXPECT_EQ(leftovers(dir.path), std::vector<std::string>{});
    }
  }
}

// As on most network file systems. The step is lost only by a crash between two renames.
TEST(Faults, SavesAStepAgainWithoutExchangingNames) {
  for (const Fault::Kind kind : {Fault::Kind::error, Fault::Kind::crash}) {
    bool struck = true;
    for (int at = 1; struck; ++at) {
      SCOPED_TRACE(str(kind == Fault::Kind::crash ? "dies" : "fails", " at operation ", at));
      const QuickFolder dir;
      for (const int step : {1, 2}) {
        save_model(model_of_seed(static_cast<std::uint64_t>(step)), dir.path, step, "dp=2", true);
      }
      const auto files = std::make_shared<FaultyFiles>(
          Fault{kind, at, /*lose_contents=*/false, /*lose_entries=*/at % 2 == 0, false});
      const auto errors = try_save(model_of_seed(3), dir.path, 2, files);
      struck = files->struck();
      const Latest latest = find_latest(dir.path, true);
      ASSERT_NE(latest.folder, "");
      EXPECT_TRUE(latest.skipped.empty()) << latest.skipped[0];
      Checkpoint checkpoint(latest.folder);
      const auto is = [&](std::uint64_t seed) {
        return load_and_compare(model_of_seed(seed), checkpoint, "dp=2", true).empty();
      };
      EXPECT_EQ(checkpoint.about().step, is(1) ? 1 : 2);
      EXPECT_EQ(is(1) + is(2) + is(3), 1);
      EXPECT_TRUE(!is(1) || kind == Fault::Kind::crash);
      EXPECT_TRUE(!errors[0].empty() || is(3));
      save_model(model_of_seed(4), dir.path, 3, "dp=1", true);
      EXPECT_EQ(leftovers(dir.path), std::vector<std::string>{});
    }
  }
}

// On a network file system a file that is open elsewhere cannot be removed.
TEST(Faults, LeftoversThatCannotBeRemovedDoNotPreventSaving) {
  class Busy : public FaultyFiles {
   public:
    explicit Busy(std::string folder) : FaultyFiles(Fault{}), folder_(std::move(folder)) {}
    void remove(const std::string& path) override {
      if (contains(path, folder_)) {
        throw DataError(str("cannot remove ", path, ": Device or resource busy"));
      }
      FaultyFiles::remove(path);
    }

   private:
    std::string folder_;
  };
  const TemporaryFolder dir;
  std::vector<std::string> warnings;
  SaveOptions options;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto save_seed = [&](std::uint64_t seed) {
    save_model(model_of_seed(seed), dir.path, 2, "dp=2", true, Copies::counted, options);
    Checkpoint checkpoint(dir / "step-00000002");
    EXPECT_EQ(load_and_compare(model_of_seed(seed), checkpoint, "dp=2", true), "");
  };
  // A checkpoint that retention renamed but could not remove.
  save_model(model_of_seed(1), dir.path, 1, "dp=2", true);
  std::filesystem::rename(dir / "step-00000001", dir / ".old-step-00000001");
  options.files = std::make_shared<Busy>(".old-step-00000001/");
  EXPECT_NO_THROW(save_seed(2));
  // The same step again: it is saved even if the old one cannot be removed.
  options.files = std::make_shared<Busy>(".tmp-step-00000002/");
  EXPECT_NO_THROW(save_seed(3));
  ASSERT_EQ(warnings.size(), 2u);
  for (const std::string& text : warnings) {
    EXPECT_TRUE(contains(text, "stays: cannot remove") && contains(text, "busy")) << text;
  }
  options.files = local_files();
  save_seed(4);
  EXPECT_EQ(leftovers(dir.path), std::vector<std::string>{});
  EXPECT_EQ(warnings.size(), 2u);
}

TEST(Faults, AFailureOfOneRankFailsAllRanks) {
  const TemporaryFolder dir;
  save_model(model_of_seed(1), dir.path, 1, "dp=3", true);
  Ranks ranks(3);
  const auto errors = ranks.run([&](const Team& team) {
    const Axes mesh("dp=3");
    const RankState state =
        make_rank(model_of_seed(2), mesh, team.rank, true, Copies::counted, true);
    SaveOptions options;
    if (team.rank == 1) {
      options.files = std::make_shared<FaultyFiles>(Fault{Fault::Kind::error, 2});
    }
    save(dir.path, describe_model(model_of_seed(2), 2, mesh, 2), state.shards, team, options);
  });
  EXPECT_TRUE(contains(errors[1], "DataError: cannot write")) << errors[1];
  for (const int other : {0, 2}) {
    const std::string& error = errors[static_cast<std::size_t>(other)];
    EXPECT_TRUE(contains(error, "PeerError 1: rank 1 cannot save: cannot write")) << error;
  }
  EXPECT_EQ(steps_in(*local_files(), dir.path), std::vector<std::int64_t>{1});
  EXPECT_EQ(leftovers(dir.path), std::vector<std::string>{});
}

TEST(Faults, SurvivesTheDeathOfOneRankAtEveryOperation) {
  for (int victim = 0; victim < 3; ++victim) {
    bool struck = true;
    for (int at = 1; struck; ++at) {
      const QuickFolder dir;
      save_model(model_of_seed(1), dir.path, 1, "dp=3", true);
      const auto files = std::make_shared<FaultyFiles>(Fault{Fault::Kind::crash, at});
      Ranks ranks(3);
      ranks.run([&](const Team& team) {
        const Axes mesh("dp=3");
        const RankState state =
            make_rank(model_of_seed(2), mesh, team.rank, true, Copies::counted, true);
        SaveOptions options;
        if (team.rank == victim) options.files = files;
        save(dir.path, describe_model(model_of_seed(2), 2, mesh, 2), state.shards, team, options);
      });
      struck = files->struck();
      const Latest latest = find_latest(dir.path, true);
      ASSERT_TRUE(latest.skipped.empty());
      Checkpoint checkpoint(latest.folder);
      ASSERT_EQ(load_and_compare(model_of_seed(static_cast<std::uint64_t>(checkpoint.about().step)),
                                 checkpoint, "dp=2", true),
                "");
    }
  }
}

TEST(Faults, ReportsFileSizeLimitsAndReadOnlyFolders) {
  const TemporaryFolder dir;
  Model large = model_of_seed(2);
  large.params.push_back({"c", {1 << 20}});
  save_model(model_of_seed(1), dir.path, 1, "dp=1", true);
  std::filesystem::create_directory(dir / "closed");
  std::filesystem::permissions(
      dir / "closed", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  // In a child process, because the limits apply to the process.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int status = 0;
    const RankState state = make_rank(large, "dp=1", 0, true, Copies::counted, true);
    const Description about = describe_model(large, 2, "dp=1", 2);
    try {
      save(dir.path, about, state.shards);
      status |= 1;
    } catch (const DataError& error) {
      if (!contains(error.what(), "rank-00000.safetensors: File too large")) status |= 2;
    }
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) status |= 4;
    try {
      save(dir / "closed/run", about, state.shards);
      status |= 8;
    } catch (const DataError& error) {
      if (!contains(error.what(), "Permission denied")) status |= 16;
    }
    ::_exit(status);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(leftovers(dir.path), std::vector<std::string>{});
  EXPECT_EQ(find_latest(dir.path, true).folder, dir / "step-00000001");
  std::filesystem::permissions(dir / "closed", std::filesystem::perms::owner_all);
}

TEST(Faults, FindLatestSkipsDamagedCheckpointsWithReasons) {
  const TemporaryFolder dir;
  EXPECT_EQ(find_latest(dir / "not-there").folder, "");
  std::ofstream(dir / "file") << "x";
  EXPECT_EQ(find_latest(dir / "file").folder, "");
  std::filesystem::remove(dir / "file");
  EXPECT_EQ(find_latest(dir.path).folder, "");
  for (const int step : {1, 2, 3, 4, 5}) {
    save_model(model_of_seed(1), dir.path, step, "dp=2", true);
  }
  std::filesystem::remove(dir / "step-00000005/manifest.json");
  std::filesystem::remove(dir / "step-00000004/rank-00001.safetensors");
  std::filesystem::resize_file(dir / "step-00000003/rank-00000.safetensors", 4200);
  {
    std::fstream file(dir / "step-00000002/rank-00001.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4100);
    file.put('x');
  }
  std::filesystem::create_directory(dir / "step-6");  // not our format
  std::filesystem::create_directory(dir / "step-00000x9");
  const Latest quick = find_latest(dir.path);
  EXPECT_EQ(quick.folder, dir / "step-00000002");
  ASSERT_EQ(quick.skipped.size(), 3u);
  EXPECT_TRUE(contains(quick.skipped[0], "step-00000005 is skipped")) << quick.skipped[0];
  EXPECT_TRUE(contains(quick.skipped[1], "rank-00001.safetensors: No such file"));
  EXPECT_TRUE(contains(quick.skipped[2], "has 4200 bytes, expected"));
  const Latest whole = find_latest(dir.path, true);
  EXPECT_EQ(whole.folder, dir / "step-00000001");
  ASSERT_EQ(whole.skipped.size(), 4u);
  EXPECT_TRUE(contains(whole.skipped[3], "rank-00001.safetensors: tensor \"param/"));
  EXPECT_TRUE(contains(whole.skipped[3], "damaged within bytes 4096 to"));
}

TEST(Faults, RetentionKeepsTheNewestAndMultiples) {
  const TemporaryFolder dir;
  SaveOptions options;
  options.retention = {2, 4};
  for (int step = 1; step <= 10; ++step) {
    save_model(model_of_seed(1), dir.path, step, "dp=1", true, Copies::counted, options);
  }
  EXPECT_EQ(steps_in(*local_files(), dir.path), (std::vector<std::int64_t>{4, 8, 9, 10}));
  // After a rollback later steps do not count, and the new checkpoint is kept.
  options.retention = {1, 0};
  save_model(model_of_seed(1), dir.path, 6, "dp=1", true, Copies::counted, options);
  EXPECT_EQ(steps_in(*local_files(), dir.path), (std::vector<std::int64_t>{6, 8, 9, 10}));
}

TEST(Faults, ErrorsNameWhatIsMissingOrWrong) {
  const TemporaryFolder dir;
  std::vector<float> values(10);
  auto* data = reinterpret_cast<std::byte*>(values.data());
  Description about;
  about.params = {{"w", {10}}};
  const auto error_of = [&](const std::vector<Shard>& shards) -> std::string {
    try {
      save(dir.path, about, shards);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(contains(error_of({{"w", "param", DType::f32, {{0, 0, 4}, {7, 4, 3}}, data}}),
                       "elements 4 to 6 of the 10 of parameter \"w\", state \"param\""));
  EXPECT_TRUE(contains(error_of({}), "no rank has any element of parameter \"w\""));
  EXPECT_TRUE(contains(error_of({{"v", "param", DType::f32, {{0, 0, 4}}, data}}), "no such"));
  EXPECT_TRUE(contains(error_of({{"w", "param", DType::f32, {{8, 0, 4}}, data}}), "has 10"));
  EXPECT_TRUE(contains(error_of({{"w", "param", DType::f32, {{0, 0, 4}}, nullptr}}), "no data"));
  EXPECT_TRUE(contains(error_of({{"w", "p\xff", DType::f32, {{0, 0, 10}}, data}}), "UTF-8"));
  EXPECT_TRUE(leftovers(dir.path).empty());
  EXPECT_TRUE(steps_in(*local_files(), dir.path).empty());

  EXPECT_EQ(error_of({{"w", "param", DType::f32, {{0, 0, 10}}, data}}), "");
  Checkpoint checkpoint(dir / "step-00000000");
  const auto load_error = [&](const WantedShard& wanted) -> std::string {
    try {
      checkpoint.load({wanted});
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(contains(load_error({"w", "moment1", DType::f32, {{0, 0, 1}}, data}),
                       "state \"moment1\" does not exist; it has: param"));
  EXPECT_TRUE(contains(load_error({"w", "param", DType::f32, {{5, 0, 6}}, data}), "has 10"));
  EXPECT_TRUE(contains(load_error({"wv", "param", DType::f32, {}, data}), "did you mean w?"));
  EXPECT_EQ(load_error({"w", "param", DType::f32, {{5, 0, 5}}, data}), "");
}

TEST(Faults, AsyncSaverReportsItsErrorOnce) {
  const TemporaryFolder dir;
  std::vector<float> values(10, 1.0f);
  const std::vector<Shard> shards = {
      {"w", "param", DType::f32, {{0, 0, 10}}, reinterpret_cast<std::byte*>(values.data())}};
  Description about;
  about.params = {{"w", {10}}};
  const auto files = std::make_shared<FaultyFiles>(Fault{Fault::Kind::error, 4});
  std::vector<std::string> warnings;
  {
    AsyncSaver saver(dir.path, {},
                     {{}, files, [&](const std::string& text) { warnings.push_back(text); }});
    EXPECT_EQ(saver.wait().folder, "");
    saver.start(about, shards);
    EXPECT_THROW(saver.wait(), DataError);
    EXPECT_EQ(saver.wait().folder, "");
    saver.start(about, shards);
    values.assign(10, 2.0f);  // the copy is saved
    about.step = 1;
    saver.start(about, shards);
    EXPECT_EQ(saver.wait().folder, dir / "step-00000001");
    EXPECT_FALSE(saver.busy());
    EXPECT_GT(saver.exposed_seconds(), 0);
    about.params.clear();
    saver.start(about, shards);
  }
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "no such parameter"));
  for (const int step : {0, 1}) {
    std::vector<float> back(10);
    Checkpoint(dir / folder_name(step))
        .load(
            {{"w", "param", DType::f32, {{0, 0, 10}}, reinterpret_cast<std::byte*>(back.data())}});
    EXPECT_EQ(back, std::vector<float>(10, step + 1.0f));
  }
}

}  // namespace
}  // namespace tessera::checkpoint
