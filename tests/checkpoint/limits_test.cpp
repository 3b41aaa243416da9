// Numbers in a manifest are accepted only if the files can hold them.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <iostream>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/core/errors.h"
#include "tests/checkpoint/hostile.h"
#include "tests/checkpoint/ranks.h"
#include "tests/text.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

class Limits : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = save_model(model_, dir_.path, 1, "dp=2", true); }
  // Replaces a text in the manifest and corrects the checksum.
  void change(const std::string& from, const std::string& to) const {
    std::string body = manifest_body(folder_);
    const std::size_t at = body.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_manifest(folder_, sealed(body.replace(at, from.size(), to)));
  }
  std::string shard() const { return folder_ + "/" + shard_file_name(0); }
  // Errors of all ways to read it, and the problems found by verify, in one text.
  std::string problems() const {
    std::string all;
    all += error_of([&] {
      Checkpoint checkpoint(folder_);
      for (const std::string& problem : checkpoint.verify()) all += problem + "\n";
    });
    all += "\n" + error_of([&] { Checkpoint(folder_).check_files(); });
    all += "\n" + error_of([&] {
             Checkpoint checkpoint(folder_);
             load_and_compare(model_, checkpoint, "dp=1", true);
           });
    return all;
  }
  void expect_refused_everywhere(const std::string& why) const {
    std::string text = problems();
    int found = 0;
    for (std::size_t at = text.find(why); at != std::string::npos; at = text.find(why, at + 1)) {
      ++found;
    }
    EXPECT_GE(found, 3) << why << " in\n" << text;
    EXPECT_EQ(find_latest(dir_.path).folder, "");
  }

  const TemporaryFolder dir_;
  const Model model_ = small_model();
  std::string folder_;
};

TEST_F(Limits, AGoodCheckpointHasNoProblems) { EXPECT_EQ(problems(), "\n\n"); }

TEST_F(Limits, RejectsASizeThatTheFileDoesNotHave) {
  const std::string bytes = "\"bytes\":" + std::to_string(fs::file_size(shard()));
  change(bytes, "\"bytes\":4503599627370496");  // 2^52
  expect_refused_everywhere("expected 4503599627370496");
}

TEST_F(Limits, RejectsCountsThatWouldOverflow) {
  for (const char* const count : {"\"step\": ", "\"samples\": "}) {
    const std::string good = manifest_body(folder_);
    const std::size_t at = good.find(count) + std::string(count).size();
    for (const char* const value : {"9007199254740993", "9223372036854775807"}) {
      std::string body = good;
      body.replace(at, good.find(',', at) - at, value);
      write_manifest(folder_, sealed(body));
      EXPECT_TRUE(contains(problems(), "to 9007199254740992")) << problems();
    }
    write_manifest(folder_, sealed(good));
  }
  // The largest count that can be read can be written too, and the next cannot.
  Manifest manifest = Checkpoint(folder_).manifest();
  manifest.about.step = manifest.about.samples = kMaxCount;
  EXPECT_EQ(parse_manifest(to_text(manifest), "m").about.step, kMaxCount);
  manifest.about.samples = kMaxCount + 1;
  EXPECT_TRUE(contains(error_of([&] { to_text(manifest); }), "samples: got 9007199254740993"));
  EXPECT_TRUE(contains(
      error_of([&] {
        const RankState state = make_rank(model_, "dp=1", 0, true, Copies::counted, true);
        save(dir_ / "next", describe_model(model_, kMaxCount + 1, "dp=1", 2), state.shards);
      }),
      "step: got 9007199254740993"));
  EXPECT_FALSE(fs::exists(dir_ / "next"));
}

TEST_F(Limits, NamesAnUnknownAxis) {
  const std::string good = manifest_body(folder_);
  change("\"axis\":\"tp\"", "\"axis\":\"xp\"");
  expect_refused_everywhere("this program has no axis \"xp\"");
  EXPECT_TRUE(contains(problems(), "params[0].cuts[0].axis")) << problems();
  EXPECT_TRUE(contains(problems(), "use a newer Tessera")) << problems();
  write_manifest(folder_, sealed(good));
  change("\"mesh\": {", "\"mesh\": {\"xp\":1,");
  expect_refused_everywhere("this program has no axis \"xp\"");
}

TEST_F(Limits, NamesANewerVersion) {
  change("\"version\": 2", "\"version\": 3");
  expect_refused_everywhere("has version 3 of the format");
  EXPECT_TRUE(contains(problems(), "reads versions 1 to 2; use a newer Tessera")) << problems();
}

// A cut along an axis that no model is cut along today is kept and can be resharded.
TEST_F(Limits, KeepsCutsOfSeveralAxes) {
  Manifest manifest = Checkpoint(folder_).manifest();
  manifest.about.params[0].cuts.push_back({Axis::pp, 1, {{2, 1}, {4, 0}}});
  EXPECT_EQ(parse_manifest(to_text(manifest), "m").about.params, manifest.about.params);
  write_manifest(folder_, to_text(manifest));
  Checkpoint from(folder_);
  for (const char* const mesh : {"pp=2", "dp=2,tp=2,pp=2"}) {
    const TemporaryFolder to;
    Checkpoint again(reshard(from, to.path, mesh, local_files()).folder);
    EXPECT_EQ(again.about().params, manifest.about.params);
    EXPECT_EQ(load_and_compare(model_, again, "dp=1", true), "") << mesh;
  }
}

TEST_F(Limits, RejectsDuplicateKeys) {
  change("\"step\":", "\"step\": 5,\n\"step\":");
  EXPECT_TRUE(contains(problems(), "has \"step\" twice")) << problems();
}

TEST_F(Limits, RejectsLinksPipesAndFolders) {
  const std::string away = dir_ / "away";
  fs::rename(shard(), away);
  fs::create_symlink(away, shard());
  expect_refused_everywhere("is a symbolic link");
  fs::remove(shard());
  fs::create_symlink(shard_file_name(1), shard());  // also rejected inside the folder
  expect_refused_everywhere("is a symbolic link");
  fs::remove(shard());
  ASSERT_EQ(::mkfifo(shard().c_str(), 0600), 0);
  expect_refused_everywhere("is a pipe; must be a regular file");
  fs::remove(shard());
  fs::create_directory(shard());
  expect_refused_everywhere("is a folder; must be a regular file");
  fs::remove(shard());
  fs::rename(away, shard());
  EXPECT_EQ(problems(), "\n\n");
  // The path of the folder may contain a link.
  fs::create_symlink(folder_, dir_ / "link");
  Checkpoint checkpoint(dir_ / "link");
  EXPECT_EQ(load_and_compare(model_, checkpoint, "dp=1", true), "");
  const std::string manifest = folder_ + "/manifest.json";
  fs::remove(manifest);
  ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
  expect_refused_everywhere("is a pipe; must be a regular file");
}

// The whole table with the library. tests/cli has it for the commands, tests/train for resuming.
// Sanitizers make each one much slower, so they run every sixth.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kEvery = 6;
#else
constexpr int kEvery = 1;
#endif
TEST_F(Limits, RejectsEveryHostileCheckpoint) {
  int count = 0, number = 0;
  for (const Hostile& hostile : hostile_checkpoints()) {
    if (hostile.large || number++ % kEvery != 0) continue;
    const std::string folder = dir_ / "hostile";
    fs::remove_all(folder);
    fs::copy(folder_, folder);
    hostile.spoil(folder);
    bool good = false;
    const std::string error = error_of([&] { good = Checkpoint(folder).verify().empty(); });
    EXPECT_FALSE(hostile.refused && good) << hostile.name;
    ++count;
  }
  std::cout << count << " hostile checkpoints\n";
}

}  // namespace
}  // namespace tessera::checkpoint
