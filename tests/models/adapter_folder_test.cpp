// Folders of adapters in the format of peft: read, rejected if they are invalid, and merged into
// their base model.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/merge.h"
#include "tessera/huggingface/peft.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::huggingface {
namespace {

constexpr std::int64_t kMutations = TESSERA_FUZZ_INPUTS;

ModelShape two_blocks() {
  ModelShape shape;
  shape.layers = 2;
  shape.hidden = 8;
  shape.heads = 2;
  shape.kv_heads = 1;
  shape.ffn = 12;
  shape.vocab = 16;
  shape.swiglu = true;
  shape.biases = false;
  return shape;
}

const std::string kConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_rslora": false,
        "target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.1, "task_type": "CAUSAL_LM",
        "use_dora": false, "modules_to_save": null, "rank_pattern": {}, "init_lora_weights": true,
        "fan_in_fan_out": false, "peft_version": "0.21.2"})";

struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;
};

float value_of(std::size_t tensor, std::int64_t i) {
  return static_cast<float>(tensor) + 0.25f * static_cast<float>(i % 7);  // exact in bf16
}

std::vector<FileTensor> adapter_tensors() {
  std::vector<FileTensor> all;
  ModelShape shape = two_blocks();
  shape.lora = {2, 4, "q,down"};
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const Adapter& adapter : adapters_of(shape)) {
      all.push_back({peft_name(shape, adapter, layer, 'A'), {2, adapter.in}});
      all.push_back({peft_name(shape, adapter, layer, 'B'), {adapter.out, 2}});
    }
  }
  return all;
}

void write_folder(const std::string& path, const std::string& config,
                  const std::vector<FileTensor>& tensors) {
  std::ofstream(path + "/" + kAdapterConfigName) << config;
  std::vector<checkpoint::TensorEntry> entries;
  std::string data;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    checkpoint::TensorEntry& entry = entries.emplace_back();
    entry.name = tensors[t].name;
    entry.dtype = tensors[t].dtype;
    entry.shape = tensors[t].shape;
    entry.begin = static_cast<std::int64_t>(data.size());
    for (std::int64_t i = 0; i < checkpoint::elements_of(entry.shape); ++i) {
      const float value = value_of(t, i);
      if (entry.dtype != DType::bf16) {
        data.append(reinterpret_cast<const char*>(&value), 4);
      } else {
        data.append(reinterpret_cast<const char*>(&value) + 2, 2);  // the upper half: bf16
      }
    }
    entry.end = static_cast<std::int64_t>(data.size());
  }
  std::ofstream(path + "/" + kAdapterModelName, std::ios::binary)
      << checkpoint::header_bytes(entries, {{"format", "pt"}}) << data;
}

std::string problem_of(const std::string& config, const std::vector<FileTensor>& tensors) {
  const TemporaryFolder folder;
  write_folder(folder.path, config, tensors);
  return error_of([&] { AdapterFolder(folder.path, two_blocks()); });
}

TEST(AdapterFolders, AreRead) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TemporaryFolder folder;
    auto tensors = adapter_tensors();
    for (FileTensor& tensor : tensors) tensor.dtype = dtype;
    write_folder(folder.path, kConfig, tensors);
    const AdapterFolder from(folder.path, two_blocks());
    EXPECT_EQ(from.lora(), (Lora{2, 4, "q,down", 0.1}));
    EXPECT_TRUE(from.has("blocks.1.proj2.lora.B"));
    EXPECT_FALSE(from.has("blocks.1.qkv.lora_v.B"));
    std::vector<float> into(5, -1);
    from.read("blocks.0.qkv.lora_q.B", {{3, 0, 2}, {9, 3, 1}}, into.data());
    EXPECT_EQ(into, (std::vector<float>{value_of(1, 3), value_of(1, 4), -1, value_of(1, 9), -1}));
  }
}

TEST(AdapterFolders, FieldsAreAppliedOrRejectedByName) {
  const auto with = [](const std::string& more) {
    return R"({"peft_type": "LORA", "r": 4, )" + more + "}";
  };
  EXPECT_EQ(parse_adapter_config(with("\"lora_alpha\": 6.5"), "x").alpha, 6.5);
  EXPECT_EQ(parse_adapter_config(with("\"bias\": \"none\""), "x").alpha, 8);
  EXPECT_EQ(parse_adapter_config(with("\"lora_dropout\": 0.25"), "x").dropout, 0.25);
  EXPECT_EQ(parse_adapter_config(with("\"lora_alpha\": 3, \"use_rslora\": true"), "x").scale(),
            3 / std::sqrt(4.0));
  for (const auto& [more, name] : std::vector<std::pair<std::string, std::string>>{
           {"\"use_dora\": true", "use_dora"},
           {"\"bias\": \"all\"", "bias"},
           {"\"modules_to_save\": [\"lm_head\"]", "modules_to_save"},
           {"\"rank_pattern\": {\"q_proj\": 2}", "rank_pattern"},
           {"\"alpha_pattern\": {\"q_proj\": 2}", "alpha_pattern"},
           {"\"layers_to_transform\": [1]", "layers_to_transform"},
           {"\"init_lora_weights\": \"pissa\"", "init_lora_weights"},
           {"\"lora_bias\": true", "lora_bias"},
           {"\"of_the_future\": 1", "of_the_future"},
           {"\"lora_alpha\": -1", "lora_alpha"},
           {"\"lora_alpha\": \"8\"", "lora_alpha"},
           {"\"lora_dropout\": 1", "lora_dropout"},
           {"\"lora_dropout\": -0.1", "lora_dropout"},
           {"\"lora_dropout\": true", "lora_dropout"},
           {"\"use_rslora\": 1", "use_rslora"}}) {
    const std::string error = error_of([&] { parse_adapter_config(with(more), "a.json"); });
    EXPECT_TRUE(contains(error, "a.json: got \"" + name + "\"")) << more << ": " << error;
  }
  for (const char* text :
       {"", "[]", "{", "{\"r\": 4}", "{\"peft_type\": \"LORA\"}",
        "{\"peft_type\": \"IA3\", \"r\": 4}", "{\"peft_type\": \"LORA\", \"r\": 0}",
        "{\"peft_type\": \"LORA\", \"r\": 4, \"r\": 8}"}) {
    EXPECT_THROW(parse_adapter_config(text, "x"), DataError) << text;
  }
}

TEST(AdapterFolders, ListsAllErrors) {
  EXPECT_EQ(problem_of(kConfig, adapter_tensors()), "");
  auto tensors = adapter_tensors();
  tensors[0].shape = {3, 8};
  tensors[1].dtype = DType::i32;
  tensors[1].shape = {4, 2};
  tensors.erase(tensors.begin() + 3);
  tensors.push_back({"base_model.model.lm_head.lora_A.weight", {2, 8}});
  const std::string error = problem_of(kConfig, tensors);
  EXPECT_TRUE(contains(error, "q_proj.lora_A.weight is [3, 8], must be [2, 8]")) << error;
  EXPECT_TRUE(contains(error, "q_proj.lora_B.weight is")) << error;
  EXPECT_TRUE(contains(error, "missing base_model.model.model.layers.0.mlp.down_proj.lora_B"))
      << error;
  EXPECT_TRUE(contains(error, "extra base_model.model.lm_head.lora_A.weight [2, 8]")) << error;

  tensors = adapter_tensors();
  tensors.resize(4);  // of the first block alone
  EXPECT_TRUE(contains(problem_of(kConfig, tensors), "missing base_model.model.model.layers.1"));
  EXPECT_TRUE(contains(problem_of(kConfig, {}), "there are none"));
  const std::string other = R"({"peft_type": "LORA", "r": 3})";
  EXPECT_TRUE(contains(problem_of(other, adapter_tensors()), "must be [3, 8]"));
}

TEST(AdapterFolders, RejectsMissingOrTruncatedFiles) {
  EXPECT_TRUE(
      contains(error_of([] { AdapterFolder("/no/such", two_blocks()); }), "must be a folder"));
  const TemporaryFolder folder;
  EXPECT_TRUE(contains(error_of([&] { AdapterFolder(folder.path, two_blocks()); }),
                       "has no adapter_config.json"));
  std::ofstream(folder.path + "/" + kAdapterConfigName) << kConfig;
  EXPECT_THROW(AdapterFolder(folder.path, two_blocks()), DataError);
  write_folder(folder.path, kConfig, adapter_tensors());
  const std::string file = folder.path + "/" + kAdapterModelName;
  const std::string whole = read_all(file);
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{40}, whole.size() - 1}) {
    std::ofstream(file, std::ios::binary) << whole.substr(0, size);
    EXPECT_THROW(AdapterFolder(folder.path, two_blocks()), DataError) << size;
  }
}

// Merged values are W + scale · B A, for any ranges of any parameter.
TEST(MergedModels, AddAdaptersToAnyRange) {
  ModelShape shape = two_blocks();
  shape.lora = {2, 4, "all"};
  std::mt19937 random(3);
  const auto noise = [](const std::string& param, std::int64_t i) {
    return static_cast<float>((std::hash<std::string>()(param) + static_cast<std::size_t>(i) * 37) %
                              101) /
           64.0f;
  };
  const auto read = [&](const std::string& param, const std::vector<tessera::Run>& runs,
                        float* into) {
    for (const tessera::Run& run : runs) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        into[run.local + i] = noise(param, run.whole + i);
      }
    }
  };
  MergedModel merged(shape, read, read);
  struct Case {
    const char* linear;
    std::int64_t rows, columns;
  };
  for (const Case& c :
       {Case{"qkv", 16, 8}, Case{"proj", 8, 8}, Case{"fc", 24, 8}, Case{"proj2", 8, 12}}) {
    const std::string weight = str("blocks.1.", c.linear, ".weight");
    std::vector<double> wanted;
    for (std::int64_t i = 0; i < c.rows * c.columns; ++i) wanted.push_back(noise(weight, i));
    std::int64_t first = 0;
    for (const Adapter& adapter : adapters_of(shape)) {
      if (adapter.linear != c.linear) continue;
      const AdapterSpecs specs = specs_of(adapter, 2, "blocks.1");
      for (std::int64_t row = 0; row < adapter.out; ++row) {
        for (std::int64_t column = 0; column < adapter.in; ++column) {
          for (std::int64_t k = 0; k < 2; ++k) {
            wanted[static_cast<std::size_t>((first + row) * c.columns + column)] +=
                2.0 * noise(specs.b.name, row * 2 + k) *
                noise(specs.a.name, k * adapter.in + column);
          }
        }
      }
      first += adapter.out;
    }
    EXPECT_EQ(first, c.rows);
    for (int trial = 0; trial < 20; ++trial) {
      const auto size = static_cast<std::int64_t>(wanted.size());
      const auto begin = static_cast<std::int64_t>(random() % wanted.size());
      const auto count = 1 + static_cast<std::int64_t>(random()) % (size - begin);
      std::vector<float> into(static_cast<std::size_t>(count) + 3);
      merged.read(weight, {{begin, 3, count}}, into.data());
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_NEAR(into[static_cast<std::size_t>(i + 3)],
                    wanted[static_cast<std::size_t>(begin + i)], 1e-4)
            << weight << " element " << begin + i;
      }
    }
  }
  std::vector<float> norm(8);
  merged.read("blocks.0.norm1.weight", {{0, 0, 8}}, norm.data());
  EXPECT_EQ(norm[5], noise("blocks.0.norm1.weight", 5));
}

// A mutated adapter_config.json gives valid options or DataError.
TEST(AdapterFolders, MutatedConfigsAreReadOrRejected) {
  const std::vector<std::string> words = {"0",
                                          "-1",
                                          "1e999",
                                          "null",
                                          "true",
                                          "{}",
                                          "[",
                                          "]",
                                          "\"r\"",
                                          "\"",
                                          "\\u0000",
                                          "\xff",
                                          ",",
                                          ":",
                                          "9223372036854775807",
                                          "\"use_rslora\": true",
                                          "\"lora_alpha\": 1e-300"};
  std::mt19937 random(1);
  std::int64_t good = 0;
  for (std::int64_t i = 0; i < kMutations; ++i) {
    std::string text = kConfig;
    for (std::uint32_t change = random() % 4; change > 0 && !text.empty(); --change) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 20); break;
        case 2: text.insert(at, words[random() % words.size()]); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 30));
      }
    }
    try {
      const Lora lora = parse_adapter_config(text, "x");
      ASSERT_TRUE(lora.rank >= 1 && lora.rank <= 65536 && lora.alpha > 0) << text;
      ++good;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(good, kMutations / 10);
}

}  // namespace
}  // namespace tessera::huggingface
