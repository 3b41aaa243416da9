// Export of checkpoints to folders, and cleanup after failures.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/reshard.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/shape_json.h"
#include "tests/checkpoint/faults.h"
#include "tests/checkpoint/ranks.h"
#include "tests/huggingface/made.h"
#include "tests/text.h"

namespace tessera::huggingface {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;

void expect_model(const std::string& path, const ModelShape& shape) {
  const Folder folder(path);
  ModelShape unnamed = shape;
  unnamed.name.clear();
  EXPECT_EQ(shape_json(folder.shape()), shape_json(unnamed));
  for (const ParamPieces& param : pieces_of(shape)) {
    std::vector<float> got(static_cast<std::size_t>(elements(param.shape)));
    folder.read(param.param, {{0, 0, static_cast<std::int64_t>(got.size())}}, DType::f32,
                reinterpret_cast<std::byte*>(got.data()));
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], value_of(param.param, static_cast<std::int64_t>(i))) << param.param << i;
    }
  }
}

TEST(Export, WritesEveryFamilyFromAnyMesh) {
  const TemporaryFolder dir;
  for (const ModelShape& shape : small_shapes()) {
    Checkpoint whole(make_checkpoint(dir / shape.name, shape));
    checkpoint::reshard(whole, dir / (shape.name + "-mesh"), "dp=2,pp=2");
    Checkpoint from(checkpoint::find_latest(dir / (shape.name + "-mesh")).folder);
    const std::string out = dir / (shape.name + "-out/");
    const WrittenFolder written = export_folder(from, out);
    EXPECT_EQ(written.files, 1);
    EXPECT_EQ(written.bytes, 4 * (shape.params() + buffer_elements(shape)));
    EXPECT_TRUE(written.companions.empty());
    expect_model(out, shape);
    FolderOptions options;
    options.dtype = DType::bf16;
    options.shard_bytes = 10'000;
    const WrittenFolder several = export_folder(from, out + "-bf16", options);
    EXPECT_GT(several.files, 2);
    expect_model(out + "-bf16", shape);
    const auto index = nlohmann::json::parse(read_all(out + "-bf16/model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], 2 * shape.params() + 4 * buffer_elements(shape));
    for (const auto& [name, file] : index["weight_map"].items()) {
      EXPECT_TRUE(fs::exists(out + "-bf16/" + file.get<std::string>())) << name;
    }
  }
}

// A folder that was loaded and exported has the tensors of the first one, byte by byte.
TEST(Export, WritesTheBytesOfTheFolderThatItsCheckpointStartedFrom) {
  const TemporaryFolder dir;
  for (const ModelShape& shape : small_shapes()) {
    make_folder(dir / (shape.name + "-hub"), shape);
    Checkpoint from(make_checkpoint(dir / shape.name, shape));
    export_folder(from, dir / (shape.name + "-out"));
    const auto tensors = [&](const std::string& folder) {
      const std::string path = dir / (shape.name + folder + "/model.safetensors");
      const auto file = checkpoint::local_files()->open(path);
      const checkpoint::Header header = checkpoint::read_header(*file, path);
      std::map<std::string, std::vector<char>> all;
      for (const checkpoint::TensorEntry& entry : header.tensors) {
        std::vector<char>& bytes = all[entry.name];
        bytes.resize(static_cast<std::size_t>(entry.bytes()));
        file->read(header.data_begin + entry.begin, reinterpret_cast<std::byte*>(bytes.data()),
                   entry.bytes());
      }
      return all;
    };
    EXPECT_TRUE(tensors("-hub") == tensors("-out")) << shape.name;
  }
}

TEST(Export, CopiesCompanionsOfTheRun) {
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("llama");
  make_folder(dir / "hub", shape);
  auto config = nlohmann::json::parse(read_all(dir / "hub/config.json"));
  config["eos_token_id"] = 7;
  std::ofstream(dir / "hub/config.json") << config;
  std::ofstream(dir / "hub/tokenizer.json") << "{\"t\": 1}";
  std::ofstream(dir / "hub/generation_config.json") << "{}";
  std::ofstream(dir / "hub/README.md") << "no";
  keep_companions(dir / "hub", dir / "run");
  keep_companions(dir / "hub", dir / "run");  // replaces the existing folder
  Checkpoint from(make_checkpoint(dir / "run", shape));
  EXPECT_NE(companions_of(from.folder()), "");
  const WrittenFolder written = export_folder(from, dir / "out");
  EXPECT_EQ(written.companions,
            (std::vector<std::string>{"generation_config.json", "tokenizer.json"}));
  EXPECT_EQ(read_all(dir / "out/tokenizer.json"), "{\"t\": 1}");
  EXPECT_FALSE(fs::exists(dir / "out/README.md"));
  // The original config.json has more fields than the shape.
  EXPECT_EQ(nlohmann::json::parse(read_all(dir / "out/config.json"))["eos_token_id"], 7);
  expect_model(dir / "out", shape);
  // A tokenizer folder whose config.json is of another model.
  make_folder(dir / "other", small_shape("gpt2"));
  std::ofstream(dir / "other/merges.txt") << "a b";
  FolderOptions options;
  options.tokenizer = dir / "other";
  EXPECT_EQ(export_folder(from, dir / "out2", options).companions,
            (std::vector<std::string>{"merges.txt"}));
  expect_model(dir / "out2", shape);
}

TEST(Export, KeepsUnknownFields) {
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("llama-tied");
  make_folder(dir / "hub", shape);
  auto config = nlohmann::json::parse(read_all(dir / "hub/config.json"));
  config["a_new_field"] = {{"x", 1}};
  config["initializer_range"] = 0.5;
  std::ofstream(dir / "hub/config.json") << config;
  keep_companions(dir / "hub", dir / "run");
  // The tensors have a separate head.
  ModelShape untied = shape;
  untied.tied = false;
  Checkpoint from(make_checkpoint(dir / "run", untied));
  export_folder(from, dir / "out");
  const auto out = nlohmann::json::parse(read_all(dir / "out/config.json"));
  EXPECT_EQ(out["a_new_field"]["x"], 1);
  EXPECT_EQ(out["initializer_range"], 0.5);
  EXPECT_EQ(out["tie_word_embeddings"], false);
  untied.init_range = 0.5;
  expect_model(dir / "out", untied);
}

// Export of a model that was trained from scratch.
TEST(Export, WritesInitializerRangeAndTokenIdsFromOptions) {
  const TemporaryFolder dir;
  ModelShape shape = small_shape("llama");
  shape.init_range = 0.0625;
  Checkpoint from(make_checkpoint(dir / "run", shape));
  FolderOptions options;
  options.begin_token = 3;
  options.end_token = 4;
  export_folder(from, dir / "out", options);
  const auto out = nlohmann::json::parse(read_all(dir / "out/config.json"));
  EXPECT_EQ(out["initializer_range"], 0.0625);
  EXPECT_EQ(out["bos_token_id"], 3);
  EXPECT_EQ(out["eos_token_id"], 4);
}

TEST(Export, RejectsInvalidArgumentsBeforeWriting) {
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("llama");
  Checkpoint from(make_checkpoint(dir / "run", shape));
  fs::create_directory(dir / "full");
  std::ofstream(dir / "full/x") << "x";
  EXPECT_TRUE(contains(error_of([&] { export_folder(from, dir / "full"); }), "not empty"));
  EXPECT_TRUE(contains(error_of([&] { export_folder(from, dir / "full/x"); }), "a regular file"));
  FolderOptions options;
  options.tokenizer = dir / "nowhere";
  EXPECT_TRUE(contains(error_of([&] { export_folder(from, dir / "o", options); }), "--tokenizer"));
  fs::create_directory(dir / "empty");
  export_folder(from, dir / "empty");
  expect_model(dir / "empty", shape);
  ModelShape odd = shape;
  odd.biases = Biases(false, true, false, false);
  Checkpoint other(make_checkpoint(dir / "odd", odd));
  EXPECT_TRUE(contains(error_of([&] { export_folder(other, dir / "o"); }), "biases"));
  EXPECT_FALSE(fs::exists(dir / "o"));
}

TEST(Export, LeavesNothingAfterAFailure) {
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("qwen2");
  Checkpoint from(make_checkpoint(dir / "run", shape));
  fs::create_directory(dir / "at");
  int operations = 1;
  for (int at = 1; at <= operations; ++at) {
    FolderOptions options;
    const auto files = std::make_shared<checkpoint::FaultyFiles>(
        checkpoint::Fault{checkpoint::Fault::Kind::error, at});
    options.files = files;
    options.shard_bytes = 20'000;
    const std::string problem = error_of([&] { export_folder(from, dir / "at/out", options); });
    if (!files->struck()) break;
    operations = at + 1;
    ASSERT_LT(at, 500);
    if (fs::exists(dir / "at/out")) {  // only the sync of the parent folder failed
      expect_model(dir / "at/out", shape);
      fs::remove_all(dir / "at/out");
      continue;
    }
    EXPECT_NE(problem, "");
    EXPECT_TRUE(fs::is_empty(dir / "at")) << at << ": " << problem;
    fs::remove_all(dir / "at");
    fs::create_directory(dir / "at");
  }
  EXPECT_GT(operations, 10);
  expect_model(dir / "at/out", shape);
}

}  // namespace
}  // namespace tessera::huggingface
