// Any mesh loads the same bits, whatever mesh saved them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tessera/checkpoint/async.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/checkpoint/ranks.h"
#include "tests/sanitized.h"

namespace tessera::checkpoint {
namespace {

struct Layout {
  Axes mesh;
  bool sharded = true;
};
std::vector<Layout> layouts() {
  return {{"dp=1", false}, {"dp=2", false},      {"dp=2", true},          {"dp=4", true},
          {"dp=3", true},  {"tp=2", false},      {"pp=2", true},          {"dp=2,tp=2", true},
          {"tp=4", true},  {"tp=4,pp=3", false}, {"dp=2,tp=2,pp=2", true}};
}
std::string text(const Layout& layout) {
  return str(layout.mesh.words(" "), layout.sharded ? " in chunks" : " whole");
}

TEST(Meshes, AnyMeshLoadsWhatAnyOtherSaved) {
  const Model model = small_model();
  for (const Copies copies : {Copies::counted, Copies::all}) {
    for (const Layout& source : layouts()) {
      const TemporaryFolder dir;
      const std::string folder =
          save_model(model, dir.path, 12, source.mesh, source.sharded, copies);
      ASSERT_EQ(folder, dir / "step-00000012");
      Checkpoint checkpoint(folder);
      EXPECT_EQ(checkpoint.verify(), std::vector<std::string>{});
      for (const Layout& target : layouts()) {
        ASSERT_EQ(load_and_compare(model, checkpoint, target.mesh, target.sharded), "")
            << text(source) << " to " << text(target);
      }
    }
  }
}

TEST(Meshes, KeepTheDescription) {
  const Model model = small_model();
  const TemporaryFolder dir;
  const Checkpoint checkpoint(save_model(model, dir.path, 7, "dp=2,tp=2,pp=2", true));
  const Description wanted = describe_model(model, 7, "dp=2,tp=2,pp=2", 2);
  const Description& got = checkpoint.about();
  EXPECT_EQ(got.step, wanted.step);
  EXPECT_EQ(got.samples, wanted.samples);
  EXPECT_EQ(got.seed, wanted.seed);
  EXPECT_EQ(got.mesh, wanted.mesh);
  EXPECT_EQ(got.stage, wanted.stage);
  EXPECT_EQ(got.layout, wanted.layout);
  EXPECT_EQ(got.model, wanted.model);
  EXPECT_EQ(got.extra, wanted.extra);
  EXPECT_EQ(got.params, wanted.params);
  EXPECT_EQ(checkpoint.states("scale"), model.states);
  EXPECT_NO_THROW(checkpoint.expect(model.params));
  EXPECT_THROW(checkpoint.expect({{"embed.weight", {6, 48}, {{Axis::tp, 0}}}}), DataError);
  EXPECT_THROW(checkpoint.expect({{"embed.wieght", {48, 6}, {{Axis::tp, 0}}}}), DataError);
}

TEST(Meshes, RanksMayDescribeOnlyTheirOwnParameters) {
  const Model model = small_model();
  const TemporaryFolder dir;
  const Axes mesh("pp=3");
  Ranks ranks(3);
  const auto errors = ranks.run([&](const Team& team) {
    const RankState state = make_rank(model, mesh, team.rank, true, Copies::counted, true);
    Description about = describe_model(model, 3, mesh, 1);
    about.params.clear();
    for (std::size_t i = 0; i < model.params.size(); ++i) {
      if (static_cast<int>(i) % 3 == team.rank) about.params.push_back(model.params[i]);
    }
    save(dir.path, about, state.shards, team);
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  Checkpoint checkpoint(dir / "step-00000003");
  EXPECT_EQ(checkpoint.about().params.size(), model.params.size());
  EXPECT_EQ(load_and_compare(model, checkpoint, "dp=2,tp=2", true), "");
}

// Larger than a block and a write, so that blocks, buffers and direct reads are all used.
TEST(Meshes, LoadLargeTensors) {
  Model model;
  model.params = {{"rows", {1203, 1000}, {{Axis::tp, 0, {{3, 1}, {1200, 0}}}}},
                  {"columns", {700, 1200}, {{Axis::tp, 1}}},
                  {"long", {tessera::testing::kSanitized ? 700'001 : 5'300'001}},
                  {"tiny", {3}}};
  model.states = {{"param", DType::f32}, {"moment1", DType::bf16}};
  const TemporaryFolder dir;
  for (const Axes& mesh : {Axes("dp=1"), Axes("dp=3,tp=2")}) {
    Checkpoint checkpoint(save_model(model, dir.path, mesh.dp(), mesh, true));
    for (const Axes& target : {Axes("dp=1"), Axes("dp=2"), Axes("tp=4,pp=2")}) {
      ASSERT_EQ(load_and_compare(model, checkpoint, target, true), "");
    }
  }
}

TEST(Meshes, ReshardEqualsASaveOfTheOtherMesh) {
  const Model model = small_model();
  const TemporaryFolder dir;
  Checkpoint first(save_model(model, dir / "a", 5, "dp=2,tp=2", true));
  for (const Axes& mesh :
       {Axes("dp=1"), Axes("dp=4,pp=2"), Axes("tp=4,pp=3"), Axes("dp=3,tp=2,pp=2"), Axes("cp=4"),
        Axes("dp=2,cp=3,tp=2,pp=2"), Axes("dp=2,cp=2,ep=4,pp=2")}) {
    const std::string to = dir / str("b", mesh.text());
    const Saved saved = reshard(first, to, mesh);
    Checkpoint second(saved.folder);
    EXPECT_EQ(second.verify(), std::vector<std::string>{});
    EXPECT_EQ(second.about().mesh, mesh);
    EXPECT_EQ(static_cast<int>(second.manifest().files.size()), mesh.world());
    EXPECT_EQ(load_and_compare(model, second, "dp=2", true), "");
    const Difference difference = diff(first, second);
    EXPECT_EQ(difference.about.size(), 1u);  // the mesh
    EXPECT_TRUE(difference.states.empty());
    EXPECT_EQ(difference.equal, 8 * 3);
    EXPECT_THROW(reshard(first, to, mesh), UsageError);  // already exists
  }
  EXPECT_THROW(reshard(first, dir / "c", "tp=5"), UsageError);
  EXPECT_FALSE(std::filesystem::exists(dir / "c"));
}

TEST(Meshes, LoadReadsOnlyTheNeededBytes) {
  struct Counting : FileSystem {
    struct Counted : File {
      Counted(std::unique_ptr<File> f, std::int64_t& n) : file(std::move(f)), total(n) {}
      void write(std::int64_t, const std::byte*, std::int64_t) override {}
      void read(std::int64_t at, std::byte* into, std::int64_t bytes) override {
        total += bytes;
        file->read(at, into, bytes);
      }
      std::int64_t size() override { return file->size(); }
      void sync() override {}
      std::unique_ptr<File> file;
      std::int64_t& total;
    };
    std::unique_ptr<File> create(const std::string&, std::int64_t) override { return nullptr; }
    std::unique_ptr<File> open(const std::string& path) override {
      return std::make_unique<Counted>(real->open(path), read);
    }
    void make_folder(const std::string&) override {}
    void sync_folder(const std::string&) override {}
    void rename(const std::string&, const std::string&) override {}
    bool exchange(const std::string&, const std::string&) override { return false; }
    void remove(const std::string&) override {}
    std::vector<std::string> list(const std::string& path) override { return real->list(path); }
    bool exists(const std::string& path) override { return real->exists(path); }
    bool is_folder(const std::string& path) override { return real->is_folder(path); }
    std::shared_ptr<FileSystem> real = local_files();
    std::int64_t read = 0;
  };
  Model model;
  model.params = {{"w", {8 << 20}}};
  model.states = {{"param", DType::f32}};
  const TemporaryFolder dir;
  const std::string folder = save_model(model, dir.path, 1, "dp=4", true);
  const auto files = std::make_shared<Counting>();
  Checkpoint checkpoint(folder, files);
  std::vector<float> some(1000);
  files->read = 0;
  checkpoint.load({{"w",
                    "param",
                    DType::f32,
                    {{3'000'000, 0, 1000}},
                    reinterpret_cast<std::byte*>(some.data())}});
  EXPECT_LE(files->read, 2 * kBlockBytes + 2 * kDataAlign);
  EXPECT_GE(files->read, 4000);
}

TEST(Meshes, SupportManyShardsOfAStateInScatteredMemory) {
  // Every third element is separate in memory, and the state is saved as two shards.
  const std::int64_t n = 30000;
  std::vector<float> memory(3 * n);
  for (std::int64_t i = 0; i < n; ++i) memory[static_cast<std::size_t>(3 * i)] = float(i);
  Shard even{"w", "param", DType::f32, {}, reinterpret_cast<const std::byte*>(memory.data())};
  Shard odd = even;
  for (std::int64_t i = 0; i < n; ++i) (i % 2 ? odd : even).runs.push_back({i, 3 * i, 1});
  odd.runs.push_back({0, 0, 0});  // an empty run is harmless
  Description about;
  about.params = {{"w", {n}}};
  const TemporaryFolder dir;
  for (const bool async : {false, true}) {
    about.step = async;
    if (async) {
      AsyncSaver saver(dir.path, {});
      saver.start(about, {even, odd});
      EXPECT_EQ(saver.wait().folder, dir / "step-00000001");
      EXPECT_LT(saver.snapshot_bytes(), 4 * n + 200);
    } else {
      save(dir.path, about, {even, odd});
    }
    Checkpoint checkpoint(dir / folder_name(about.step));
    // Strided runs keep the manifest small.
    EXPECT_LE(checkpoint.manifest().files[0].tensors[0].strided_runs.size(), 2u);
    std::vector<float> back(static_cast<std::size_t>(n));
    checkpoint.load(
        {{"w", "param", DType::f32, {{0, 0, n}}, reinterpret_cast<std::byte*>(back.data())}});
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(back[static_cast<std::size_t>(i)], float(i));
  }
}

// The second shard of "w" is a tensor "param/w#1".
TEST(Meshes, AParameterMayBeNamedLikeASecondShard) {
  const TemporaryFolder dir;
  std::vector<float> values(12);
  for (int i = 0; i < 12; ++i) values[static_cast<std::size_t>(i)] = float(i);
  const auto at = [&](std::size_t i) { return reinterpret_cast<std::byte*>(&values[i]); };
  Description about;
  about.params = {{"w", {4}}, {"w#1", {4}}, {"w#2", {4}}};
  for (const bool first : {false, true}) {
    about.step = first;
    std::vector<Shard> shards = {{"w", "param", DType::f32, {{0, 0, 2}}, at(0)},
                                 {"w", "param", DType::f32, {{2, 0, 2}}, at(2)},
                                 {"w#1", "param", DType::f32, {{0, 0, 4}}, at(4)},
                                 {"w#2", "param", DType::f32, {{0, 0, 4}}, at(8)}};
    if (first) std::reverse(shards.begin(), shards.end());
    save(dir.path, about, shards);
    Checkpoint checkpoint(dir / folder_name(about.step));
    EXPECT_TRUE(checkpoint.verify().empty());
    std::vector<float> back(12);
    for (std::size_t i = 0; i < 3; ++i) {
      checkpoint.load({{about.params[i].name,
                        "param",
                        DType::f32,
                        {{0, 0, 4}},
                        reinterpret_cast<std::byte*>(&back[4 * i])}});
    }
    EXPECT_EQ(back, values);
  }
}

TEST(Diff, ReportsANanEvenIfOtherValuesDiffer) {
  const TemporaryFolder dir;
  Description about;
  about.params = {{"w", {3}}};
  std::vector<float> values = {1, 2, 3};
  const auto save_values = [&] {
    save(dir.path, about,
         {{"w", "param", DType::f32, {{0, 0, 3}}, reinterpret_cast<std::byte*>(values.data())}});
  };
  save_values();
  about.step = 1;
  values = {1, std::numeric_limits<float>::quiet_NaN(), 7};
  save_values();
  Checkpoint a(dir / folder_name(0)), b(dir / folder_name(1));
  const Difference difference = diff(a, b);
  ASSERT_EQ(difference.states.size(), 1u);
  EXPECT_EQ(difference.states[0].elements, 2);
  EXPECT_EQ(difference.states[0].first, 1);
  EXPECT_TRUE(std::isnan(difference.states[0].largest));
}

TEST(Meshes, ConvertTypesIfExact) {
  std::vector<float> exact(100), rough(100);
  for (int i = 0; i < 100; ++i) {
    exact[static_cast<std::size_t>(i)] = static_cast<float>(i - 50);
    rough[static_cast<std::size_t>(i)] = 0.1f * static_cast<float>(i);
  }
  std::vector<std::uint16_t> narrow(100);
  for (int i = 0; i < 100; ++i)
    narrow[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i * 650);
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  Description about;
  about.params = {{"w", {100}}};
  const std::vector<tessera::Run> all = {{0, 0, 100}};
  const TemporaryFolder dir;
  save(dir.path, about,
       {{"w", "exact", DType::f32, all, bytes(exact)},
        {"w", "rough", DType::f32, all, bytes(rough)},
        {"w", "narrow", DType::bf16, all, bytes(narrow)}});
  Checkpoint checkpoint(dir / "step-00000000");
  std::vector<float> wide(100);
  std::vector<std::uint16_t> half(100);
  checkpoint.load({{"w", "narrow", DType::f32, all, bytes(wide)}});
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(value_at(DType::f32, bytes(wide), i), value_at(DType::bf16, bytes(narrow), i));
  }
  checkpoint.load({{"w", "exact", DType::bf16, all, bytes(half)}});
  for (int i = 0; i < 100; ++i) ASSERT_EQ(value_at(DType::bf16, bytes(half), i), i - 50);
  try {
    checkpoint.load({{"w", "rough", DType::bf16, all, bytes(half)}});
    FAIL() << "0.1 is not a bf16 value";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("value 0.1 at element 1"), std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(
      checkpoint.load({{"w", "rough", DType::bf16, all, bytes(half)}}, Rounding::nearest));
  EXPECT_THROW(checkpoint.load({{"w", "exact", DType::i32, all, bytes(wide)}}), DataError);
}

}  // namespace
}  // namespace tessera::checkpoint
