// Folders of models with experts whose config.json or tensors are wrong: every problem is refused
// with the field or the tensor.

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"
#include "tests/checkpoint/ranks.h"
#include "tests/huggingface/made.h"
#include "tests/text.h"

namespace tessera::huggingface {
namespace {

using Json = nlohmann::json;

// Returns the message of the DataError, "" if the config is read.
std::string refusal_of(const Json& json) {
  try {
    parse_config(json.dump(), "config.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

const std::vector<Json>& hostile_values() {
  static const std::vector<Json> values = {0,
                                           -1,
                                           1.5,
                                           2147483648,
                                           18446744073709551615u,
                                           1e300,
                                           "4",
                                           true,
                                           Json::array(),
                                           Json::array({1}),
                                           Json::object(),
                                           -9223372036854775807 - 1,
                                           "\u0000\x1b[2J"};
  return values;
}

TEST(HostileExperts, SizesAreRefusedByName) {
  struct Case {
    const char* model;
    std::vector<const char*> fields;
  };
  const std::vector<Case> cases = {
      {"mixtral", {"num_local_experts", "num_experts", "num_experts_per_tok", "intermediate_size"}},
      {"qwen3-moe", {"num_experts", "num_experts_per_tok", "moe_intermediate_size"}},
      {"dots1",
       {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"}}};
  for (const Case& each : cases) {
    const Json good = Json::parse(config_json(small_shape(each.model), "float32"));
    ASSERT_EQ(refusal_of(good), "");
    for (const char* const field : each.fields) {
      for (const Json& value : hostile_values()) {
        Json json = good;
        json[field] = value;
        const std::string problem = refusal_of(json);
        EXPECT_TRUE(contains(problem, field)) << each.model << " " << value << ": " << problem;
        EXPECT_TRUE(contains(problem, "config.json")) << problem;
        EXPECT_FALSE(contains(problem, "\x1b")) << problem;
        EXPECT_LT(problem.size(), 400U);
      }
    }
  }
}

TEST(HostileExperts, OtherFieldsAreRefusedByNameOrChangeNothing) {
  struct Case {
    const char* model;
    const char* field;
    std::vector<Json> allowed;
  };
  const std::vector<Case> cases = {
      {"mixtral", "router_jitter_noise", {0}},
      {"mixtral", "router_aux_loss_coef", {0, 1.5}},
      {"mixtral", "output_router_logits", {true}},
      {"qwen3-moe", "norm_topk_prob", {true}},
      {"qwen3-moe", "decoder_sparse_step", {}},
      {"qwen3-moe", "mlp_only_layers", {Json::array()}},
      {"qwen3-moe", "shared_expert_intermediate_size", {0, Json::array(), Json::object()}},
      {"dots1", "norm_topk_prob", {true}},
      {"dots1", "routed_scaling_factor", {0, 1.5}},
      {"dots1", "first_k_dense_replace", {0}},
      {"dots1", "n_group", {}},
      {"dots1", "topk_group", {}},
      {"dots1", "moe_layer_freq", {}},
      {"dots1", "scoring_func", {}},
      {"dots1", "topk_method", {}}};
  for (const Case& each : cases) {
    const Json good = Json::parse(config_json(small_shape(each.model), "float32"));
    for (const Json& value : hostile_values()) {
      bool allowed = false;
      for (const Json& one : each.allowed) allowed = allowed || one.dump() == value.dump();
      Json json = good;
      json[each.field] = value;
      const std::string problem = refusal_of(json);
      if (allowed) {
        EXPECT_EQ(problem, "") << each.field << " " << value;
      } else {
        EXPECT_TRUE(contains(problem, each.field)) << each.model << " " << value << ": " << problem;
      }
    }
  }
}

TEST(HostileExperts, SelectingMoreExpertsThanExistIsRefused) {
  for (const char* const model : {"mixtral", "qwen3-moe", "dots1"}) {
    const ModelShape shape = small_shape(model);
    Json json = Json::parse(config_json(shape, "float32"));
    json["num_experts_per_tok"] = shape.experts.count;
    EXPECT_EQ(refusal_of(json), "");
    json["num_experts_per_tok"] = shape.experts.count + 1;
    const std::string problem = refusal_of(json);
    EXPECT_TRUE(contains(problem, str("1 to ", shape.experts.count))) << problem;
  }
}

// Attention and routing of other models.
TEST(HostileExperts, OtherArchitecturesAreRefusedWithTheReason) {
  struct Case {
    const char* type;
    const char* reason;
  };
  for (const Case& each : {Case{"deepseek_v2", "multi-head latent attention"},
                           {"deepseek_v3", "multi-head latent attention"},
                           {"qwen2_moe", "gate of its shared experts"},
                           {"gpt_oss", "attention sinks"},
                           {"llama4", "layers without positions"},
                           {"olmoe", "norms over all heads"},
                           {"glm4_moe", "partial rotary positions"}}) {
    Json json = Json::parse(config_json(small_shape("dots1"), "float32"));
    json["model_type"] = each.type;
    const std::string problem = refusal_of(json);
    EXPECT_TRUE(contains(problem, str("\"", each.type, "\""))) << problem;
    EXPECT_TRUE(contains(problem, each.reason)) << problem;
  }
  // Fields of DeepSeek in a file with another name.
  for (const char* const field : {"q_lora_rank", "kv_lora_rank", "qk_rope_head_dim"}) {
    Json json = Json::parse(config_json(small_shape("dots1"), "float32"));
    json[field] = 16;
    EXPECT_TRUE(contains(refusal_of(json), field)) << field;
  }
}

using Entries = std::vector<checkpoint::TensorEntry>;

// Returns the message for a folder whose tensors were changed.
std::string problem_with(const ModelShape& shape, bool stacked,
                         const std::function<void(Entries&)>& change) {
  const TemporaryFolder dir;
  MadeOptions options;
  options.stacked = stacked;
  options.entries = change;
  make_folder(dir / "a", shape, options);
  try {
    const Folder folder(dir / "a");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(HostileExperts, TensorsAreRefusedByName) {
  struct Case {
    const char* model;
    std::vector<const char*> tensors;
  };
  const std::string layer = "model.layers.1.";
  const std::vector<Case> cases = {
      {"mixtral",
       {"block_sparse_moe.gate.weight", "block_sparse_moe.experts.0.w1.weight",
        "block_sparse_moe.experts.2.w2.weight", "block_sparse_moe.experts.1.w3.weight"}},
      {"qwen3-moe", {"mlp.gate.weight", "mlp.experts.4.down_proj.weight"}},
      {"dots1",
       {"mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.experts.3.up_proj.weight",
        "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.down_proj.weight"}}};
  for (const Case& each : cases) {
    const ModelShape shape = small_shape(each.model);
    for (const char* const tensor : each.tensors) {
      const std::string name = layer + tensor;
      const auto with = [&](const std::function<void(checkpoint::TensorEntry&)>& change) {
        return problem_with(shape, false, [&](Entries& entries) {
          for (checkpoint::TensorEntry& entry : entries) {
            if (entry.name == name) change(entry);
          }
        });
      };
      std::string problem = problem_with(shape, false, [&](Entries& entries) {
        std::erase_if(entries, [&](const auto& entry) { return entry.name == name; });
      });
      EXPECT_TRUE(contains(problem, "missing " + name)) << problem;
      problem = with([](checkpoint::TensorEntry& entry) { entry.shape[0] += 1; });
      EXPECT_TRUE(contains(problem, name + " is [")) << problem;
      problem = with([](checkpoint::TensorEntry& entry) { entry.shape.push_back(1); });
      EXPECT_TRUE(contains(problem, name + " is [")) << problem;
      problem = with([](checkpoint::TensorEntry& entry) { entry.shape = {0}; });
      EXPECT_TRUE(contains(problem, name + " is [0]")) << problem;
      problem = with([](checkpoint::TensorEntry& entry) { entry.dtype = DType::i64; });
      EXPECT_TRUE(contains(problem, name + " is I64, must be F32, BF16 or F16")) << problem;
      problem = with([](checkpoint::TensorEntry& entry) { entry.name += "_scale_inv"; });
      EXPECT_TRUE(contains(problem, "extra " + name + "_scale_inv")) << problem;
    }
  }
}

TEST(HostileExperts, ExpertsBeyondTheirNumberAreExtra) {
  const ModelShape shape = small_shape("qwen3-moe");
  const std::string last = "model.layers.2.mlp.experts.4.up_proj.weight";
  for (const char* const number : {"5", "-1", "04", "4294967300", "4."}) {
    std::string other = last;
    other.replace(other.find(".4.") + 1, 1, number);
    const std::string problem = problem_with(shape, false, [&](Entries& entries) {
      for (checkpoint::TensorEntry& entry : entries) {
        if (entry.name == last) entry.name = other;
      }
    });
    EXPECT_TRUE(contains(problem, "extra " + other)) << problem;
    EXPECT_TRUE(contains(problem, "missing " + last)) << problem;
  }
  // In a layer that has an ordinary MLP.
  const std::string problem = problem_with(shape, false, [&](Entries& entries) {
    checkpoint::TensorEntry entry = entries.front();
    entry.name = "model.layers.0.mlp.experts.0.up_proj.weight";
    entries.push_back(entry);
  });
  EXPECT_TRUE(contains(problem, "extra model.layers.0.mlp.experts.0.up_proj.weight")) << problem;
}

// Some experts stacked and others separate.
TEST(HostileExperts, MixedStoragesAreRefused) {
  for (const char* const model : {"mixtral", "dots1"}) {
    const ModelShape shape = small_shape(model);
    const std::string problem = problem_with(shape, true, [&](Entries& entries) {
      for (checkpoint::TensorEntry& entry : entries) {
        if (entry.name == "model.layers.1.mlp.experts.down_proj") {
          entry.name = "model.layers.1.mlp.experts.0.down_proj.weight";
        }
      }
    });
    EXPECT_TRUE(contains(problem, "missing model.layers.1.mlp.experts.down_proj")) << problem;
    EXPECT_TRUE(contains(problem, "extra model.layers.1.mlp.experts.0.down_proj.weight"))
        << problem;
  }
}

// The number of experts in config.json is not backed by tensors.
TEST(HostileExperts, ManyExpertsWithoutTensorsAreRefusedQuickly) {
  const TemporaryFolder dir;
  const ModelShape shape = small_shape("qwen3-moe");
  make_folder(dir / "a", shape);
  Json json = Json::parse(config_json(shape, "float32"));
  json["num_experts"] = 100'000;
  const auto files = checkpoint::local_files();
  files->remove(dir / "a/config.json");
  checkpoint::write_text(*files, dir / "a/config.json", json.dump());
  std::string problem;
  try {
    const Folder folder(dir / "a");
  } catch (const DataError& error) {
    problem = error.what();
  }
  EXPECT_TRUE(contains(problem, "100000 experts")) << problem.substr(0, 400);
  EXPECT_LT(problem.size(), 1000U);
}

}  // namespace
}  // namespace tessera::huggingface
