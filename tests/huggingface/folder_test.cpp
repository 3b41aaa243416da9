// Folders of safetensors: reads of any range of a parameter against a slow reference, and invalid
// folders.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tessera/checkpoint/shard.h"
#include "tessera/core/errors.h"
#include "tessera/core/half.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_folder.h"
#include "tests/checkpoint/ranks.h"
#include "tests/huggingface/made.h"
#include "tests/text.h"

namespace tessera::huggingface {
namespace {

// Reads runs as fp32 and compares them with the written values. Elements outside the runs must stay
// unchanged.
void expect_runs(const Folder& folder, const std::string& param,
                 const std::vector<tessera::Run>& runs, std::int64_t size) {
  constexpr float kUntouched = 1e9;
  std::vector<float> got(static_cast<std::size_t>(size), kUntouched), wanted = got;
  for (const Run& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      wanted[static_cast<std::size_t>(run.local + i)] = value_of(param, run.whole + i);
    }
  }
  folder.read(param, runs, DType::f32, reinterpret_cast<std::byte*>(got.data()));
  EXPECT_EQ(got, wanted) << param;
}

TEST(Folder, ReadsEveryParameterOfEveryFamilyAndType) {
  const TemporaryFolder dir;
  for (const ModelShape& shape : small_shapes()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::string path = dir / str(shape.name, name(dtype));
      MadeOptions options;
      options.dtype = dtype;
      options.files = dtype == DType::f32 ? 1 : 3;
      options.prefix = dtype != DType::f16;
      options.buffers = dtype == DType::bf16;
      make_folder(path, shape, options);
      const Folder folder(path);
      EXPECT_EQ(folder.dtype(), dtype);
      std::int64_t params = 0;
      for (const ParamPieces& param : pieces_of(shape)) {
        const std::int64_t size = elements(param.shape);
        EXPECT_EQ(folder.shape_of(param.param), param.shape);
        expect_runs(folder, param.param, {{0, 0, size}}, size);
        params += size;
      }
      // All parameters were read.
      EXPECT_EQ(params, shape.params() + buffer_elements(shape)) << shape.name;
    }
  }
}

// transformers 5 can save the experts of a layer as one tensor.
TEST(Folder, ReadsStackedExperts) {
  const TemporaryFolder dir;
  for (const char* const name : {"mixtral", "qwen3-moe", "dots1", "dots1-all-sparse"}) {
    const ModelShape shape = small_shape(name);
    for (const bool prefix : {true, false}) {
      const std::string path = dir / str(name, prefix);
      MadeOptions options;
      options.stacked = true;
      options.prefix = prefix;
      options.files = prefix ? 1 : 2;
      make_folder(path, shape, options);
      const Folder folder(path);
      EXPECT_EQ(folder.bytes(), 4 * (shape.params() + buffer_elements(shape)));
      for (const ParamPieces& param : pieces_of(shape)) {
        const std::int64_t size = elements(param.shape);
        EXPECT_EQ(folder.shape_of(param.param), param.shape);
        expect_runs(folder, param.param, {{0, 0, size}}, size);
      }
    }
    MadeOptions wrong;
    wrong.stacked = true;
    wrong.entries = [](std::vector<checkpoint::TensorEntry>& entries) {
      for (checkpoint::TensorEntry& entry : entries) {
        if (entry.name == "model.layers.1.mlp.experts.down_proj") entry.shape[0] += 1;
        if (entry.name == "model.layers.1.mlp.experts.gate_up_proj") entry.name += "x";
      }
    };
    make_folder(dir / str(name, "wrong"), shape, wrong);
    const std::string problem = error_of([&] { const Folder folder(dir / str(name, "wrong")); });
    for (const char* const part : {"model.layers.1.mlp.experts.down_proj is [",
                                   "missing model.layers.1.mlp.experts.gate_up_proj [",
                                   "extra model.layers.1.mlp.experts.gate_up_projx"}) {
      const std::size_t at = problem.find(part);
      EXPECT_NE(at, std::string::npos) << part << " in\n" << problem;
      EXPECT_EQ(problem.find(part, at + 1), std::string::npos) << "once: " << problem;
    }
  }
}

// The type of a folder is that of its parameters; the selection biases beside them are fp32.
TEST(Folder, KeepsTheTypeOfSelectionBiases) {
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("dots1");
  MadeOptions options;
  options.dtype = DType::bf16;
  make_folder(dir / "a", shape, options);
  const Folder folder(dir / "a");
  EXPECT_EQ(folder.dtype(), DType::bf16);
  EXPECT_EQ(folder.bytes(), 2 * shape.params() + 4 * buffer_elements(shape));
  EXPECT_TRUE(folder.has("blocks.1.experts.selection_bias"));
  EXPECT_FALSE(folder.has("blocks.0.experts.selection_bias"));
}

// Shards of several meshes, and random runs.
TEST(Folder, ReadsAnyRangeOfAParameter) {
  const TemporaryFolder dir;
  std::mt19937_64 random(5);
  for (const char* const model : {"gpt2", "llama", "mixtral", "dots1"}) {
    const ModelShape shape = small_shape(model);
    MadeOptions options;
    options.dtype = DType::bf16;
    options.stacked = std::string(model) == "dots1";
    make_folder(dir / model, shape, options);
    const Folder folder(dir / model);
    for (const ParamPieces& param : pieces_of(shape)) {
      const std::int64_t size = elements(param.shape);
      for (int dim = 0; dim < static_cast<int>(param.shape.size()); ++dim) {
        ParamSpec spec;
        spec.name = param.param;
        spec.shape = param.shape;
        spec.cuts = {{Axis::tp, dim}};
        for (const int tp : {2, 3}) {
          const Axes axes{{Axis::tp, tp}};
          for (int t = 0; t < tp; ++t) {
            const Coordinate at{{Axis::tp, t}};
            const std::vector<tessera::Run> runs = local_runs(spec, axes, at);
            const std::int64_t local = elements(local_shape(spec, axes, at));
            expect_runs(folder, param.param, runs, local);
            // A data-parallel rank's shard of it, which starts and ends inside rows.
            const std::int64_t begin = local / 3 + 1, count = local / 2;
            expect_runs(folder, param.param, checkpoint::cut(runs, begin, count), count);
          }
        }
      }
      for (int i = 0; i < 20; ++i) {
        std::vector<tessera::Run> runs;
        std::int64_t whole = 0, local = 0;
        while (true) {
          whole += static_cast<std::int64_t>(random() % 7) * (random() % 3 == 0 ? 5 : 0);
          const auto count = static_cast<std::int64_t>(random() % 90);
          if (whole + count > size) break;
          if (count > 0) runs.push_back({whole, local, count});
          whole += count;
          local += count + static_cast<std::int64_t>(random() % 3);
        }
        expect_runs(folder, param.param, runs, local);
      }
    }
    EXPECT_THROW(expect_runs(folder, "tok.weight", {{0, 0, 51 * 24 + 1}}, 51 * 24 + 1), UsageError);
    EXPECT_THROW(folder.read("none", {}, DType::f32, nullptr), UsageError);
  }
}

// Tensors larger than a job and with gaps too large to read over; conversion to narrower types.
TEST(Folder, ReadsLargeTensorsInSeveralJobs) {
  const TemporaryFolder dir;
  ModelShape shape = small_shape("gpt2");
  shape.layers = 1;
  shape.hidden = 16;
  shape.ffn = 90'001;  // a row of c_fc.weight has 360 kB, c_proj.weight 5.7 MB
  make_folder(dir / "a", shape);
  const Folder folder(dir / "a");
  for (const char* const param : {"blocks.0.fc.weight", "blocks.0.proj2.weight"}) {
    const std::int64_t size = 16 * shape.ffn;
    expect_runs(folder, param, {{0, 0, size}}, size);
    expect_runs(folder, param, {{size / 3, 0, size / 3}}, size / 3);
    expect_runs(folder, param, {{17, 0, 33}}, 33);
    std::vector<std::uint16_t> half(static_cast<std::size_t>(size));
    folder.read(param, {{0, 0, size}}, DType::bf16, reinterpret_cast<std::byte*>(half.data()));
    for (std::int64_t i = 0; i < size; i += 997) {
      ASSERT_EQ(from_bf16(half[static_cast<std::size_t>(i)]), value_of(param, i));
    }
  }
}

std::string problem_of(const std::string& path) {
  return error_of([&] {
    try {
      const Folder folder(path);
    } catch (const DataError&) {
      throw;
    } catch (const UsageError& error) {
      ADD_FAILURE() << error.what();
    }
  });
}

TEST(Folder, ListsAllMissingAndExtraTensorsWithShapes) {
  const TemporaryFolder dir;
  MadeOptions options;
  options.entries = [](std::vector<checkpoint::TensorEntry>& entries) {
    for (checkpoint::TensorEntry& entry : entries) {
      if (entry.name == "model.layers.0.self_attn.k_proj.weight") entry.name = "unknown.weight";
      if (entry.name == "model.layers.1.mlp.up_proj.weight") entry.name = "model.other";
      if (entry.name == "model.norm.weight") entry.shape = {25};
      if (entry.name == "model.embed_tokens.weight") entry.dtype = DType::i32;
    }
  };
  make_folder(dir / "a", small_shape("llama"), options);
  const std::string problem = problem_of(dir / "a");
  for (const char* const part :
       {"missing model.layers.0.self_attn.k_proj.weight [12, 24]",
        "missing model.layers.1.mlp.up_proj.weight [40, 24]", "extra unknown.weight [12, 24] F32",
        "extra model.other [40, 24] F32", "model.norm.weight is [25], must be [24]",
        "model.embed_tokens.weight is I32, must be F32, BF16 or F16"}) {
    EXPECT_TRUE(contains(problem, part)) << part << " in\n" << problem;
  }
}

// As in transformers, a head that differs from the embedding is untied whatever config.json says,
// with a note; an equal one is a copy.
TEST(Folder, UntiesAHeadThatDiffersFromTheEmbedding) {
  const TemporaryFolder dir;
  for (const char* const name : {"llama-tied", "gpt2"}) {
    const ModelShape tied = small_shape(name);
    ASSERT_TRUE(tied.tied);
    ModelShape untied = tied;
    untied.tied = false;
    const std::string path = dir / name;
    MadeOptions options;
    options.files = 2;
    make_folder(path, untied, options);
    const auto files = checkpoint::local_files();
    files->remove(path + "/config.json");
    checkpoint::write_text(*files, path + "/config.json", config_json(tied, "float32"));
    const Folder folder(path);
    EXPECT_FALSE(folder.shape().tied);
    ASSERT_TRUE(folder.has("head.weight"));
    const std::int64_t size = tied.vocab * tied.hidden;
    expect_runs(folder, "head.weight", {{0, 0, size}}, size);
    ASSERT_EQ(folder.notes().size(), 1u);
    EXPECT_TRUE(contains(folder.notes()[0], "tie_word_embeddings")) << folder.notes()[0];

    // The same values under both names.
    for (const DType dtype : {DType::f32, DType::bf16}) {
      MadeOptions copied;
      copied.dtype = dtype;
      copied.head_copy = true;
      make_folder(path + "-copy", tied, copied);
      const Folder copy(path + "-copy");
      EXPECT_TRUE(copy.shape().tied);
      EXPECT_FALSE(copy.has("head.weight"));
      EXPECT_TRUE(copy.notes().empty());
    }
  }
}

// transformers uses the head as the embedding if the embedding is missing.
TEST(Folder, ReadsTheEmbeddingOfATiedModelFromItsHead) {
  const TemporaryFolder dir;
  const ModelShape tied = small_shape("llama-tied");
  MadeOptions options;
  options.head_copy = true;
  options.entries = [](std::vector<checkpoint::TensorEntry>& entries) {
    entries.erase(entries.begin());
  };
  make_folder(dir / "a", tied, options);
  const Folder folder(dir / "a");
  EXPECT_TRUE(folder.shape().tied);
  const std::int64_t size = tied.vocab * tied.hidden;
  expect_runs(folder, "tok.weight", {{0, 0, size}}, size);
}

// Names come from the file: they may be long, many, and contain escape sequences.
TEST(Folder, EscapesAndShortensNamesInErrors) {
  const TemporaryFolder dir;
  MadeOptions options;
  options.entries = [](std::vector<checkpoint::TensorEntry>& entries) {
    for (int i = 0; i < 3000; ++i) {
      checkpoint::TensorEntry entry;
      entry.name = str("\x1b[2J\x1b]0;title\x07", std::string(2000, 'n'), i);
      entry.shape = {1};
      entries.push_back(entry);
    }
  };
  make_folder(dir / "a", small_shape("llama"), options);
  const std::string problem = problem_of(dir / "a");
  EXPECT_TRUE(contains(problem, "extra \\x1b[2J\\x1b]0;title\\x07nnn")) << problem.substr(0, 400);
  EXPECT_TRUE(contains(problem, "and 2900 more")) << problem.substr(problem.size() - 400);
  EXPECT_FALSE(contains(problem, "\x1b"));
  EXPECT_LT(problem.size(), 40'000u);
}

TEST(Folder, RejectsHostileFiles) {
  namespace fs = std::filesystem;
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("mistral");
  const auto made = [&](int files) {
    fs::remove_all(dir / "a");
    MadeOptions options;
    options.files = files;
    make_folder(dir / "a", shape, options);
  };
  const auto expect_problem = [&](const std::string& part) {
    const std::string problem = problem_of(dir / "a");
    EXPECT_TRUE(contains(problem, part)) << part << " in: " << problem;
  };
  made(1);
  const std::string model = dir / "a/model.safetensors";
  const auto size = static_cast<std::int64_t>(fs::file_size(model));
  for (const std::int64_t kept :
       {size - 1, size / 2, std::int64_t{9}, std::int64_t{3}, std::int64_t{0}}) {
    made(1);
    fs::resize_file(model, static_cast<std::uintmax_t>(kept));
    expect_problem("model.safetensors");
  }
  made(1);
  fs::remove(model);
  expect_problem("has no model.safetensors");
  std::ofstream(dir / "a/pytorch_model.bin") << "x";
  expect_problem("pytorch_model.bin is not supported");
  // Outside of the folder, by a link or by the index.
  made(1);
  fs::rename(model, dir / "elsewhere.safetensors");
  fs::create_symlink(dir / "elsewhere.safetensors", model);
  expect_problem("outside of its folder");
  made(2);
  const std::string index = dir / "a/model.safetensors.index.json";
  const std::string good = read_all(index);
  const auto with_file = [&](const std::string& name) {
    std::string text = good;
    const std::string was = "model-1-of-2.safetensors";
    for (std::size_t at = 0; (at = text.find(was, at)) != std::string::npos; at += name.size()) {
      text.replace(at, was.size(), name);
    }
    std::ofstream(index) << text;
  };
  for (const char* const name :
       {"../elsewhere.safetensors", "/etc/passwd", "/tmp/x.safetensors", "sub/x.safetensors", "..",
        "", ".hidden.safetensors", "model.bin", "a\\u0000.safetensors"}) {
    with_file(name);
    expect_problem("must be the name of a .safetensors file");
  }
  with_file("gone.safetensors");
  expect_problem("lacks files that its index names: gone.safetensors");
  with_file("model-2-of-2.safetensors");
  expect_problem("lacks model.");
  for (const char* const text :
       {"", "[]", "{}", "{\"weight_map\": 3}", "{\"weight_map\": {}}",
        "{\"weight_map\": {\"a\": 1}}",
        "{\"weight_map\": {\"a\": \"b.safetensors\", \"a\": \"c.safetensors\"}}"}) {
    std::ofstream(index, std::ios::trunc) << text;
    expect_problem("index.json");
  }
  fs::remove(dir / "a/config.json");
  EXPECT_NE(error_of([&] { const Folder folder(dir / "a"); }), "");
  // A folder instead of a file.
  made(1);
  fs::remove(model);
  fs::create_directory(model);
  expect_problem("model.safetensors");
}

TEST(Folder, FollowsLinksFromSnapshotsToBlobs) {
  namespace fs = std::filesystem;
  const TemporaryFolder dir;
  const std::string snapshot = dir / "models--a/snapshots/1234";
  make_folder(snapshot, small_shape("llama"));
  fs::create_directories(dir / "models--a/blobs");
  fs::rename(snapshot + "/model.safetensors", dir / "models--a/blobs/abcd");
  fs::create_symlink("../../blobs/abcd", snapshot + "/model.safetensors");
  EXPECT_EQ(problem_of(snapshot), "");
}

}  // namespace
}  // namespace tessera::huggingface
