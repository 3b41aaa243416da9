// `tessera checkpoint` as a user runs it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/checkpoint/lock.h"
#include "tests/checkpoint/ranks.h"
#include "tests/processes.h"
#include "tests/text.h"

namespace tessera::cli {
namespace {

using checkpoint::Checkpoint;
using Json = nlohmann::json;

Outcome command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {TESSERA_PROGRAM, "checkpoint"});
  return outcome_of(arguments);
}
class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = checkpoint::small_model();
    first_ = checkpoint::save_model(model_, dir_ / "run", 10, "dp=2,tp=2", true);
    second_ = checkpoint::save_model(model_, dir_ / "run", 20, "dp=1", false);
  }
  void damage(const std::string& path, std::int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char before = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(before ^ 1));
  }
  TemporaryFolder dir_;
  checkpoint::Model model_;
  std::string first_, second_;
};

TEST_F(CheckpointCommand, InspectListsContents) {
  const Outcome table = command({"inspect", first_, "--params"});
  EXPECT_EQ(table.status, 0) << table.err;
  for (const char* part : {"step ", " 10\n", "dp 2 · tp 2 · pp 1", "param F32",
                           "blocks.0.qkv.weight", "[32, 10]", "grüße"}) {
    EXPECT_TRUE(contains(table.out, part)) << part << "\n" << table.out;
  }
  // Names with their values, one per line.
  EXPECT_TRUE(contains(table.out, "layers 2")) << table.out;
  EXPECT_FALSE(contains(table.out, "{\"")) << table.out;
  const std::size_t step = table.out.find("  step "), seed = table.out.find("  seed ");
  EXPECT_EQ(table.out.find(" 10\n", step) - step,
            table.out.find_first_of("0123456789", seed) - 1 - seed)
      << table.out;
  // The newest checkpoint of a run.
  const Outcome json = command({"inspect", dir_ / "run", "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  const Json value = Json::parse(json.out);
  EXPECT_EQ(value.at("step"), 20);
  EXPECT_EQ(value.at("params").size(), model_.params.size());
  EXPECT_EQ(value.at("model").at("layers"), 2);
  // The previous one if that is damaged.
  std::filesystem::remove(second_ + "/rank-00000.safetensors");
  const Outcome older = command({"inspect", dir_ / "run", "--json"});
  EXPECT_EQ(Json::parse(older.out).at("step"), 10);
  EXPECT_TRUE(contains(older.err, "step-00000020 is skipped")) << older.err;
}

TEST_F(CheckpointCommand, ExportReplacesOnlySafetensorsFiles) {
  const std::string book = dir_ / "book.txt", empty = dir_ / "empty",
                    model = dir_ / "m.safetensors";
  std::ofstream(book) << "not to be lost\n";
  const Outcome refused = command({"export", first_, book});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.err, "exists and is not a safetensors file")) << refused.err;
  EXPECT_EQ(read_all(book), "not to be lost\n");
  std::ofstream(empty).close();
  EXPECT_EQ(command({"export", first_, empty}).status, 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(command({"export", first_, model}).status, 0);
}

TEST_F(CheckpointCommand, VerifyReadsEveryByte) {
  EXPECT_EQ(command({"verify", first_}).status, 0);
  damage(first_ + "/rank-00001.safetensors", 4096);
  const Outcome bad = command({"verify", first_});
  EXPECT_EQ(bad.status, 1);
  EXPECT_TRUE(contains(bad.out, "rank-00001.safetensors: tensor \"")) << bad.out;
  const Outcome json = command({"verify", first_, "--json"});
  EXPECT_EQ(json.status, 1);
  EXPECT_EQ(Json::parse(json.out).at("good"), false);
  EXPECT_EQ(Json::parse(json.out).at("problems").size(), 1u);
  std::filesystem::remove(first_ + "/rank-00002.safetensors");
  const Outcome missing = command({"verify", first_});
  EXPECT_EQ(missing.status, 1);
  EXPECT_TRUE(contains(missing.out, "rank-00002.safetensors: No such file")) << missing.out;
  EXPECT_TRUE(contains(missing.out, "rank-00001.safetensors: tensor")) << missing.out;
  EXPECT_EQ(command({"inspect", first_}).status, 1);
}

TEST_F(CheckpointCommand, ExternalHashesDetectForgery) {
  const std::string list = dir_ / "kept.sha256";
  const Outcome printed = command({"verify", first_, "--sha256"});
  ASSERT_EQ(printed.status, 0) << printed.err;
  EXPECT_TRUE(contains(printed.err, ": good")) << printed.err;
  const Outcome written = command({"verify", first_, "--sha256", "--out", list});
  ASSERT_EQ(written.status, 0) << written.err;
  EXPECT_TRUE(contains(written.out, list)) << written.out;
  std::ifstream in(list);
  const std::string kept{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(kept, printed.out);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 5);  // four ranks and the manifest
  EXPECT_EQ(command({"verify", first_, "--against", list}).status, 0);
  const Outcome json = command({"verify", first_, "--against", list, "--json"});
  EXPECT_EQ(Json::parse(json.out).at("sha256").size(), 5u);
  // Every file of another checkpoint differs, although none is damaged.
  EXPECT_EQ(command({"verify", second_}).status, 0);
  const Outcome other = command({"verify", second_, "--against", list});
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(contains(other.out, "manifest.json was changed")) << other.out;
  EXPECT_TRUE(contains(other.out, "rank-00003.safetensors is in " + list)) << other.out;
  // A damaged checkpoint gets no list, and the old list is kept.
  damage(first_ + "/rank-00001.safetensors", 4096);
  EXPECT_EQ(command({"verify", first_, "--sha256", "--out", list}).status, 1);
  EXPECT_EQ(command({"verify", first_, "--sha256"}).out.find("  manifest.json"), std::string::npos);
  std::ifstream again(list);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), kept);
}

TEST_F(CheckpointCommand, ReshardRefusesAFolderThatARunWritesTo) {
  const checkpoint::FolderLock lock(dir_ / "wide", "a run");
  const Outcome kept_out = command({"reshard", first_, dir_ / "wide"});
  EXPECT_EQ(kept_out.status, 2);
  EXPECT_TRUE(contains(kept_out.err, "is being written to by a run (pid ")) << kept_out.err;
}

TEST_F(CheckpointCommand, DiffFindsChangedTensors) {
  const Outcome same = command({"diff", first_, second_});
  EXPECT_EQ(same.status, 0) << same.out << same.err;
  EXPECT_TRUE(contains(same.out, "step: 10 in A, 20 in B"));
  EXPECT_TRUE(contains(same.out, "24 states have the same bits"));
  checkpoint::Model other = model_;
  other.seed = 2;
  other.states.erase("moment1");
  const std::string third = checkpoint::save_model(other, dir_ / "other", 10, "dp=1", true);
  const Outcome differs = command({"diff", first_, third, "--json"});
  EXPECT_EQ(differs.status, 1);
  const Json value = Json::parse(differs.out);
  EXPECT_EQ(value.at("same"), false);
  EXPECT_EQ(value.at("states").size(), 24u);
  EXPECT_TRUE(contains(command({"diff", first_, third}).out, "moment1: only in A"));
}

TEST_F(CheckpointCommand, ReshardsAndExports) {
  const Outcome reshard = command({"reshard", first_, dir_ / "wide", "--dp", "3", "--pp", "2"});
  EXPECT_EQ(reshard.status, 0) << reshard.err;
  EXPECT_EQ(command({"diff", first_, dir_ / "wide"}).status, 0);
  Checkpoint wide(dir_ / "wide/step-00000010");
  EXPECT_EQ(checkpoint::load_and_compare(model_, wide, "tp=4", true), "");
  // For ranks that share sequences, as they save it, and back.
  const Outcome context =
      command({"reshard", first_, dir_ / "context", "--dp", "2", "--cp", "3", "--tp", "2"});
  EXPECT_EQ(context.status, 0) << context.err;
  EXPECT_TRUE(contains(context.out, "12 shards (dp 2 · cp 3 · tp 2")) << context.out;
  EXPECT_EQ(command({"diff", first_, dir_ / "context"}).status, 0);
  EXPECT_EQ(command({"reshard", dir_ / "context", dir_ / "back", "--dp", "2", "--tp", "2"}).status,
            0);
  EXPECT_EQ(command({"diff", first_, dir_ / "back"}).status, 0);
  const Outcome cannot = command({"reshard", first_, dir_ / "odd", "--tp", "5"});
  EXPECT_EQ(cannot.status, 2);
  EXPECT_TRUE(contains(cannot.err, "qkv.weight")) << cannot.err;

  for (const std::string dtype : {"", "bf16", "f32"}) {
    const std::string path = dir_ / ("model" + dtype + ".safetensors");
    std::vector<std::string> words = {"export", first_, path};
    if (!dtype.empty()) words.insert(words.end(), {"--dtype", dtype});
    const Outcome exported = command(words);
    ASSERT_EQ(exported.status, 0) << exported.err;
    const auto file = checkpoint::local_files()->open(path);
    const checkpoint::Header header = checkpoint::read_header(*file, path);
    EXPECT_EQ(header.tensors.size(), model_.params.size());
    for (const checkpoint::TensorEntry& tensor : header.tensors) {
      EXPECT_EQ(checkpoint::stored_name(tensor.dtype), dtype == "bf16" ? "BF16" : "F32");
    }
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  }
}

TEST_F(CheckpointCommand, Version1IsReadAndReshardedToVersion2) {
  const std::string old = TESSERA_VERSION1;
  const Outcome shown = command({"inspect", old, "--params"});
  EXPECT_EQ(shown.status, 0) << shown.err;
  for (const char* part : {"dp 1 · tp 2 · pp 1", "blocks.0.qkv.weight", "[48, 16]", "moment2"}) {
    EXPECT_TRUE(contains(shown.out, part)) << part << "\n" << shown.out;
  }
  EXPECT_EQ(command({"verify", old}).status, 0);
  const Outcome reshard = command({"reshard", old, dir_ / "new", "--dp", "2"});
  EXPECT_EQ(reshard.status, 0) << reshard.err;
  const std::string manifest = read_all(dir_ / "new/step-00000002/manifest.json");
  EXPECT_TRUE(contains(manifest, "\"version\": 2,")) << manifest.substr(0, 200);
  EXPECT_TRUE(contains(manifest, R"("cuts":[{"axis":"tp","dim":1}])")) << manifest.substr(0, 4000);
  EXPECT_EQ(command({"diff", old, dir_ / "new"}).status, 0);
}

TEST_F(CheckpointCommand, MistakesAreExplained) {
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> cases = {
      {{}, 2, "must be one of inspect, verify, diff, reshard, export"},
      {{"list", first_}, 2, "list: unknown; must be one of inspect"},
      {{first_}, 2, "must be one of inspect"},
      {{"inspect", first_, second_}, 2, "unexpected argument"},
      {{"inspect", first_, "--param"}, 2, "did you mean --params?"},
      {{"inspect", ""}, 2, "must be the folder of a checkpoint"},
      {{"inspect", first_ + "/manifest.json"}, 2, "did you mean " + first_ + "?"},
      {{"inspect", dir_ / "run/step-10"}, 2, "from step-00000010 to step-00000020"},
      {{"inspect", dir_ / "rnu"}, 2, "did you mean run?"},
      {{"inspect", dir_.path}, 1, "did you mean " + (dir_ / "run")},
      {{"verify", first_, "--out", dir_ / "x"}, 2, "--out: needs --sha256"},
      {{"verify", first_, "--sha256", dir_ / "x"}, 2, "unexpected argument"},
      {{"verify", first_, "--sha256", "--out", dir_.path}, 2, "is a folder"},
      {{"verify", first_, "--sha256", "--out", dir_ / "no/x"}, 2, "the folder must exist"},
      {{"verify", first_, "--against", dir_ / "nothing"}, 2, "--against: cannot read"},
      {{"verify", first_, "--against", dir_.path}, 2, "is a folder; must be a list"},
      {{"verify", first_, "--against", first_ + "/manifest.json"}, 1, "line 1: got"},
      {{"diff", first_}, 2, "OTHER is required: folder of the checkpoint to compare"},
      {{"diff", first_, dir_ / "nowhere"}, 2, "no such folder"},
      {{"reshard", first_}, 2, "TO is required: folder in which to create"},
      {{"reshard", first_, dir_ / "x", "--dp", "1000000", "--tp", "100"}, 2, "1048576 ranks"},
      {{"reshard", first_, dir_ / "x", "--dp", "two"}, 2, "must be an integer"},
      {{"reshard", first_, first_ + "/manifest.json"},
       1,
       "Not a directory; part of this path is a file"},
      {{"export", first_}, 2, "TO is required: file or folder to write"},
      {{"export", first_, dir_.path}, 2, "it is a folder"},
      {{"export", first_, dir_ / "m", "--dtype", "float33"}, 2, "--dtype: got the type"},
      {{"inspct", first_}, 2, "did you mean inspect?"},
      {{"inspect"}, 2, "DIR is required: folder of a checkpoint or of a run"},
      {{"inspect", dir_ / "nowhere"}, 2, "no such folder"},
      {{"inspect", dir_.path}, 1, "no readable checkpoint"},
      {{"export", first_, dir_ / "m", "--dtype", "bf61"}, 2, "did you mean"},
      {{"export", first_, dir_ / "m", "--dtype", "i32"}, 2, "must be one of f32, bf16, f16"},
      {{"export", first_, dir_ / "m", "--format", "gguf"}, 2, "--format: got \"gguf\"; must be"},
      {{"export", first_, dir_ / "m", "--format", "gguf"},
       2,
       "Try: tessera checkpoint export --help"},
      {{"export", first_, dir_ / "m", "--dtype", "i8"}, 2, "Try: tessera checkpoint export --help"},
      {{"list", first_}, 2, "Try: tessera checkpoint --help"},
      {{"export", first_, dir_ / "m", "--state", "moment7"}, 1, "it has: moment1, moment2, param"},
      {{"export", first_, dir_ / "no/m"}, 1, "No such file or directory"},
      {{"reshard", first_, dir_ / "x", "--dp", "0"}, 2, "must be 1 to"},
      {{"reshard", first_, dir_ / "run"}, 2, "already exists"}};
  for (const auto& [words, status, wanted] : cases) {
    const Outcome outcome = command(words);
    EXPECT_EQ(outcome.status, status) << wanted << "\n" << outcome.err;
    EXPECT_TRUE(contains(outcome.err, wanted)) << wanted << "\n" << outcome.err;
  }
  for (const char* name : {"inspect", "verify", "diff", "reshard", "export"}) {
    const Outcome help = command({name, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_TRUE(contains(help.out, "Examples")) << help.out;
  }
}

}  // namespace
}  // namespace tessera::cli
