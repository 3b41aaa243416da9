// Checkpoints of format version 1: data/v1, written by a program that had no version 2.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/core/crypto.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::checkpoint {
namespace {

const std::string kFolder = TESSERA_VERSION1;

// SHA-256 of the files that the program which saved data/v1 exported from it, by state.
const std::vector<std::pair<std::string, std::string>> kExported = {
    {"param", "e7980fb1b641dccc8b6ebac510fc2077ac220cd31f7e7c07f79c3cbb94ad62a9"},
    {"moment1", "241edbbb701fc00dc87520e43e6b3ce35f644da554edd24bdb791064d2f77b12"},
    {"moment2", "8738bfb8e329c44b3063d9983a4a394f1cc6680e64c3a35fc6cf9b6e977cc099"}};

void expect_same_values(Checkpoint& from) {
  const TemporaryFolder dir;
  for (const auto& [state, hash] : kExported) {
    const std::string path = dir / state;
    ExportOptions options;
    options.state = state;
    export_model(from, path, options);
    EXPECT_EQ(tessera::to_hex(sha256(read_all(path))), hash) << state;
  }
}

// Returns the line of a manifest that begins with this key.
std::string manifest_line(const std::string& folder, const std::string& key) {
  const std::string text = read_all(folder + "/manifest.json");
  const std::size_t begin = text.find("\"" + key + "\": ");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(Version1, LoadsWithItsCutsAndValues) {
  ASSERT_EQ(manifest_line(kFolder, "version"), "\"version\": 1,");
  Checkpoint from(kFolder);
  EXPECT_TRUE(from.verify().empty());
  EXPECT_EQ(from.about().step, 2);
  EXPECT_EQ(from.about().mesh, Axes("tp=2"));
  const std::vector<ParamSpec::Segment> qkv = {{16, 2}, {16, 2}, {16, 2}};
  const std::vector<ParamSpec> wanted = {{"tok.weight", {32, 16}, {{Axis::tp, 0}}},
                                         {"pos.weight", {16, 16}},
                                         {"blocks.0.norm1.weight", {16}},
                                         {"blocks.0.norm1.bias", {16}},
                                         {"blocks.0.qkv.weight", {48, 16}, {{Axis::tp, 0, qkv}}},
                                         {"blocks.0.qkv.bias", {48}, {{Axis::tp, 0, qkv}}},
                                         {"blocks.0.proj.weight", {16, 16}, {{Axis::tp, 1}}},
                                         {"blocks.0.proj.bias", {16}},
                                         {"blocks.0.norm2.weight", {16}},
                                         {"blocks.0.norm2.bias", {16}},
                                         {"blocks.0.fc.weight", {64, 16}, {{Axis::tp, 0}}},
                                         {"blocks.0.fc.bias", {64}, {{Axis::tp, 0}}},
                                         {"blocks.0.proj2.weight", {16, 64}, {{Axis::tp, 1}}},
                                         {"blocks.0.proj2.bias", {16}},
                                         {"norm.weight", {16}},
                                         {"norm.bias", {16}}};
  EXPECT_EQ(from.about().params, wanted);
  expect_same_values(from);
}

TEST(Version1, ReshardsToVersion2WithTheSameValues) {
  Checkpoint from(kFolder);
  for (const char* const mesh : {"dp=1", "dp=3", "tp=4", "dp=2,tp=2,pp=2"}) {
    SCOPED_TRACE(mesh);
    const TemporaryFolder dir;
    const Saved saved = reshard(from, dir.path, mesh, local_files());
    EXPECT_EQ(manifest_line(saved.folder, "version"), "\"version\": 2,");
    Checkpoint again(saved.folder);
    EXPECT_EQ(again.about().params, from.about().params);
    expect_same_values(again);
  }
}

// A rank of another mesh reads its elements of the old files.
TEST(Version1, LoadsOntoAnotherMesh) {
  Checkpoint from(kFolder);
  const Axes axes = "tp=4";
  for (const ParamSpec& spec : from.about().params) {
    std::vector<float> whole(static_cast<std::size_t>(elements_of(spec.shape)));
    from.load({{spec.name,
                "param",
                DType::f32,
                {{0, 0, elements_of(spec.shape)}},
                reinterpret_cast<std::byte*>(whole.data()),
                {}}});
    for (int t = 0; t < 4; ++t) {
      const Coordinate at{{Axis::tp, t}};
      const std::vector<tessera::Run> runs = local_runs(spec, axes, at);
      std::vector<float> own(static_cast<std::size_t>(elements_of(local_shape(spec, axes, at))));
      from.load(
          {{spec.name, "param", DType::f32, runs, reinterpret_cast<std::byte*>(own.data()), {}}});
      for (const tessera::Run& run : runs) {
        EXPECT_EQ(std::memcmp(own.data() + run.local, whole.data() + run.whole,
                              static_cast<std::size_t>(run.count) * sizeof(float)),
                  0)
            << spec.name << " on rank " << t;
      }
    }
    if (spec.name == "blocks.0.qkv.weight") {
      EXPECT_EQ(whole.front(), -0x1.515082p-8f);
      EXPECT_EQ(whole.back(), 0x1.c63b34p-7f);
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint
