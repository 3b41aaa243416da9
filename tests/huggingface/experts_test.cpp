// Mixtures of experts: config.json and the shape of a model, exports, adapters.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/merge.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/peft.h"
#include "tessera/huggingface/shape_json.h"
#include "tests/checkpoint/ranks.h"
#include "tests/huggingface/made.h"
#include "tests/text.h"

namespace tessera::huggingface {
namespace {

using Json = nlohmann::json;

// Files of published models, with fewer layers.
Json mixtral_8x7b() {
  return Json::parse(R"({
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 4,
    "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})");
}
Json qwen3_30b_a3b() {
  return Json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
}
Json dots_llm1() {
  return Json::parse(R"({
    "architectures": ["Dots1ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 151643, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 10944,
    "max_position_embeddings": 32768, "max_window_layers": 62, "model_type": "dots1",
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 128,
    "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts_per_tok": 6, "num_hidden_layers": 4, "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000,
    "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "sliding_window": null,
    "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16",
    "transformers_version": "4.46.3", "use_cache": true, "vocab_size": 152064})");
}

Config sparse_config_of(const Json& json) { return parse_config(json.dump(), "config.json"); }
ModelShape sparse_shape_of(const Json& json) { return sparse_config_of(json).shape; }
std::string sparse_problem_of(const Json& json) {
  return error_of([&] { sparse_shape_of(json); });
}

TEST(ExpertsConfig, ReadsPublishedModels) {
  for (const Json& json : {mixtral_8x7b(), qwen3_30b_a3b(), dots_llm1()}) {
    EXPECT_TRUE(sparse_config_of(json).notes.empty()) << sparse_config_of(json).notes.front();
  }
  ModelShape shape = sparse_shape_of(mixtral_8x7b());
  EXPECT_EQ(shape.experts, (Experts{.count = 8, .per_token = 2, .width = 14336}));
  EXPECT_EQ(shape.family, Family::mixtral);
  EXPECT_FALSE(shape.qk_norm);
  EXPECT_EQ(shape.window, 0);
  // The published numbers of parameters: 46.7 billion, 12.9 billion active.
  shape.layers = 32;
  EXPECT_EQ(shape.params(), 46'702'792'704);
  EXPECT_NEAR(static_cast<double>(shape.active_params()), 12.88e9, 5e6);

  shape = sparse_shape_of(qwen3_30b_a3b());
  EXPECT_EQ(shape.experts, (Experts{.count = 128, .per_token = 8, .width = 768}));
  EXPECT_TRUE(shape.qk_norm);
  EXPECT_EQ(shape.head_dim(), 128);
  shape.layers = 48;
  EXPECT_EQ(shape.params(), 30'532'122'624);
  EXPECT_NEAR(static_cast<double>(shape.active_params()), 3.35e9, 5e6);

  shape = sparse_shape_of(dots_llm1());
  Experts wanted{.count = 128, .per_token = 6, .width = 1408, .shared_width = 2816};
  wanted.scores = RouterScores::sigmoid;
  wanted.scale = 2.5;
  wanted.selection_bias = true;
  wanted.dense_layers = 1;
  EXPECT_EQ(shape.experts, wanted);
  EXPECT_EQ(shape.window, 0);
  EXPECT_TRUE(shape.qk_norm);
  shape.layers = 62;
  EXPECT_NEAR(static_cast<double>(shape.params()), 142.8e9, 2e8);  // "142B"
}

TEST(ExpertsConfig, ReadsEveryField) {
  Json json = mixtral_8x7b();
  json.erase("num_local_experts");
  json["num_experts"] = 5;  // its other name
  json["sliding_window"] = 64;
  json.erase("rope_theta");
  ModelShape shape = sparse_shape_of(json);
  EXPECT_EQ(shape.experts.count, 5);
  EXPECT_EQ(shape.window, 64);
  EXPECT_EQ(shape.rotary_base, 1e6);  // the default of this family
  json["num_local_experts"] = 6;
  EXPECT_TRUE(contains(sparse_problem_of(json), "num_local_experts")) << sparse_problem_of(json);

  json = qwen3_30b_a3b();
  json["norm_topk_prob"] = false;
  json["mlp_only_layers"] = {1, 0};
  json["use_sliding_window"] = true;
  json["sliding_window"] = 32;
  shape = sparse_shape_of(json);
  EXPECT_FALSE(shape.experts.normalized);
  EXPECT_EQ(shape.experts.dense_layers, 2);
  EXPECT_FALSE(shape.has_experts(1));
  EXPECT_TRUE(shape.has_experts(2));
  EXPECT_EQ(shape.window_layers(), 4);  // all of them, whatever max_window_layers is
  json.erase("norm_topk_prob");
  EXPECT_FALSE(sparse_shape_of(json).experts.normalized);  // the default of transformers

  json = dots_llm1();
  json["sliding_window"] = 32;
  json["max_window_layers"] = 3;
  json["first_k_dense_replace"] = 0;
  json["scoring_func"] = "sigmoid";
  json["n_group"] = nullptr;
  shape = sparse_shape_of(json);
  EXPECT_EQ(shape.window, 32);
  EXPECT_EQ(shape.window_layers(), 1);
  EXPECT_EQ(shape.experts.dense_layers, 0);
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                         "full_attention"};
  EXPECT_EQ(sparse_shape_of(json).window_layers(), 2);
  const ModelShape back = parse_config(config_json(sparse_shape_of(json), "float32"), "c").shape;
  EXPECT_EQ(shape_json(back), shape_json(sparse_shape_of(json)));
}

// Losses for balance are settings of a training run; transformers uses them only if it returns the
// router's logits.
TEST(ExpertsConfig, NotesSettingsOfTraining) {
  Json json = mixtral_8x7b();
  json["output_router_logits"] = true;
  ASSERT_EQ(sparse_config_of(json).notes.size(), 1u);
  // 0.02 · 2 experts per token / 4 layers.
  EXPECT_TRUE(contains(sparse_config_of(json).notes[0], "--balance-loss 0.01"))
      << sparse_config_of(json).notes[0];
  EXPECT_EQ(sparse_shape_of(json).experts.balance_loss, 0);
  json["router_jitter_noise"] = 0.1;
  ASSERT_EQ(sparse_config_of(json).notes.size(), 2u);
  EXPECT_TRUE(contains(sparse_config_of(json).notes[0], "router_jitter_noise"));
}

TEST(ExpertsConfig, RejectsUnsupportedFieldsByName) {
  struct Case {
    Json base;
    const char* name;
    Json value;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {mixtral_8x7b(), "num_local_experts", 0, "from 1"},
      {mixtral_8x7b(), "num_local_experts", 1'000'000, "100000"},
      {mixtral_8x7b(), "num_experts_per_tok", 9, "1 to 8"},
      {mixtral_8x7b(), "num_experts_per_tok", "2", "whole number"},
      {mixtral_8x7b(), "attention_bias", true, "attention_bias"},
      {mixtral_8x7b(), "n_shared_experts", 1, "n_shared_experts"},
      {mixtral_8x7b(), "first_k_dense_replace", 1, "first_k_dense_replace"},
      {mixtral_8x7b(), "router_aux_loss_coef", -1, "0 to"},
      {mixtral_8x7b(), "quantization_config", {{"bits", 4}}, "quantized"},
      {qwen3_30b_a3b(), "decoder_sparse_step", 2, "all layers but some first ones"},
      {qwen3_30b_a3b(), "mlp_only_layers", {1}, "first layers"},
      {qwen3_30b_a3b(), "mlp_only_layers", {0, 2}, "first layers"},
      {qwen3_30b_a3b(), "mlp_only_layers", {-1}, "first layers"},
      {qwen3_30b_a3b(), "mlp_only_layers", {0, "1"}, "first layers"},
      {qwen3_30b_a3b(), "mlp_only_layers", {0, 1, 2, 3, 4}, "first layers"},
      {qwen3_30b_a3b(), "mlp_only_layers", 0, "first layers"},
      {qwen3_30b_a3b(), "shared_expert_intermediate_size", 64, "shared_expert"},
      {qwen3_30b_a3b(), "moe_intermediate_size", 0, "from 1"},
      {qwen3_30b_a3b(), "norm_topk_prob", 1, "true or false"},
      {dots_llm1(), "n_group", 8, "not within groups"},
      {dots_llm1(), "topk_group", 2, "not within groups"},
      {dots_llm1(), "scoring_func", "softmax", "sigmoid scores"},
      {dots_llm1(), "topk_method", "greedy", "sigmoid scores"},
      {dots_llm1(), "moe_layer_freq", 2, "first ones"},
      {dots_llm1(), "n_shared_experts", nullptr, "missing"},
      {dots_llm1(), "n_shared_experts", 0, "from 1"},
      {dots_llm1(), "n_shared_experts", 2147483647, "shared-expert-ffn"},
      {dots_llm1(), "n_routed_experts", nullptr, "missing"},
      {dots_llm1(), "routed_scaling_factor", -1, "0 to"},
      {dots_llm1(), "num_nextn_predict_layers", 1, "num_nextn_predict_layers"},
  };
  for (const Case& each : cases) {
    Json json = each.base;
    json[each.name] = each.value;
    const std::string problem = sparse_problem_of(json);
    EXPECT_TRUE(contains(problem, each.reason)) << each.name << ": " << problem;
    EXPECT_TRUE(contains(problem, "config.json")) << problem;
  }
}

// Small files must not make the reader use much memory.
TEST(ExpertsConfig, BoundsTheNumberOfExperts) {
  Json json = qwen3_30b_a3b();
  json["num_hidden_layers"] = 50'000;
  json["num_experts"] = 50'000;
  EXPECT_TRUE(contains(sparse_problem_of(json), "at most 1000000")) << sparse_problem_of(json);
  json["num_hidden_layers"] = 10;
  json["hidden_size"] = 1'000'000;
  json["moe_intermediate_size"] = 8'000'000;
  EXPECT_TRUE(contains(sparse_problem_of(json), "10^18")) << sparse_problem_of(json);
}

TEST(ExpertsConfig, RejectsShapesOfNoFamily) {
  const auto problem = [](const char* name, const auto& change) {
    ModelShape shape = small_shape(name);
    shape.family = Family::none;
    change(shape);
    return error_of([&] { config_json(shape, "float32"); });
  };
  const auto expect = [&](const char* name, const auto& change, const char* part) {
    const std::string got = problem(name, change);
    EXPECT_TRUE(contains(got, part)) << part << ": " << got;
  };
  expect(
      "mixtral", [](ModelShape& s) { s.experts.normalized = false; }, "add up to 1");
  expect(
      "mixtral", [](ModelShape& s) { s.experts.dense_layers = 1; }, "first layers");
  expect(
      "mixtral", [](ModelShape& s) { s.experts.shared_width = 3; }, "shared experts");
  expect(
      "mixtral", [](ModelShape& s) { s.experts.scale = 2; }, "scaled");
  expect(
      "mixtral", [](ModelShape& s) { s.experts.selection_bias = true; }, "biases for the");
  expect(
      "mixtral", [](ModelShape& s) { s.biases.mlp = true; }, "experts with biases");
  expect(
      "mixtral", [](ModelShape& s) { s.biases.qkv = true; }, "biases");
  expect(
      "mixtral", [](ModelShape& s) { s.window_from = 1; }, "window");
  expect(
      "qwen3-moe", [](ModelShape& s) { s.window = s.window_from = 1; }, "window");
  expect(
      "dots1", [](ModelShape& s) { s.experts.selection_bias = false; }, "without biases");
  expect(
      "dots1", [](ModelShape& s) { s.experts.shared_width = 0; }, "without a shared");
  expect(
      "dots1", [](ModelShape& s) { s.experts.shared_width = 19; }, "multiple");
  expect(
      "dots1", [](ModelShape& s) { s.experts.shared_gate = true; }, "gate");
  expect(
      "dots1", [](ModelShape& s) { s.qk_norm = false; }, "no norms");
  expect(
      "gpt2", [](ModelShape& s) { s.experts = {.count = 2, .per_token = 1, .width = 4}; },
      "learned positions");
  // The family of a file must have its experts.
  ModelShape shape = small_shape("llama");
  shape.experts = {.count = 2, .per_token = 1, .width = 4};
  EXPECT_TRUE(contains(error_of([&] { config_json(shape, "float32"); }), "experts"));
  shape = small_shape("mixtral");
  shape.experts = {};
  EXPECT_TRUE(contains(error_of([&] { config_json(shape, "float32"); }), "no experts"));
}

// The manifest of a checkpoint has the shape of its model.
TEST(ExpertsShape, RoundTripsInManifests) {
  ModelShape shape = small_shape("dots1");
  Experts& experts = shape.experts;
  experts.shared_gate = true;
  experts.bias_rate = 0.001;
  experts.balance_loss = 0.01;
  experts.z_loss = 0.003;
  experts.jitter = 0.125;
  experts.capacity = 1.25;
  const ModelShape back = parse_shape(shape_json(shape), "m");
  EXPECT_EQ(back.experts, experts);
  EXPECT_EQ(back.family, Family::dots1);
  EXPECT_EQ(parse_shape(shape_json(small_shape("mixtral")), "m").experts,
            small_shape("mixtral").experts);
  // Manifests without experts, as earlier versions wrote them.
  EXPECT_FALSE(contains(shape_json(small_shape("llama")), "experts"));
  EXPECT_FALSE(parse_shape(shape_json(small_shape("llama")), "m").experts.any());
}

TEST(ExpertsShape, RejectsHostileManifests) {
  const Json good = Json::parse(shape_json(small_shape("dots1")));
  struct Case {
    const char* name;
    Json value;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"count", 1'000'000, "100000"},
      {"count", 0, "experts"},
      {"count", -1, "experts"},
      {"count", 1.5, "whole number"},
      {"count", "8", "whole number"},
      {"count", 18446744073709551615u, "experts"},
      {"per_token", 5, "1 to 4"},
      {"per_token", 0, "1 to 4"},
      {"width", 9'000'000, "expert-ffn"},
      {"shared_width", -1, "shared-expert-ffn"},
      {"scores", "linear", "linear"},
      {"scores", 3, "shape"},
      {"normalized", 1, "shape"},
      {"scale", -1, "factor"},
      {"jitter", 1, "router-jitter"},
      {"capacity", -2, "expert-capacity"},
      {"dense_layers", 3, "dense-layers"},
      {"bias_rate", -1, "balance-bias-rate"},
  };
  for (const Case& each : cases) {
    Json json = good;
    json["experts"][each.name] = each.value;
    const std::string problem = error_of([&] { parse_shape(json.dump(), "manifest"); });
    EXPECT_TRUE(contains(problem, each.reason)) << each.name << ": " << problem;
    EXPECT_TRUE(contains(problem, "manifest")) << problem;
  }
  for (const Json& experts : {Json(3), Json::array({1}), Json::object(), Json(nullptr)}) {
    Json json = good;
    json["experts"] = experts;
    EXPECT_NE(error_of([&] { parse_shape(json.dump(), "manifest"); }), "") << experts.dump();
  }
  Json json = good;
  json["layers"] = 100'000;
  json["experts"]["count"] = 100'000;
  EXPECT_TRUE(contains(error_of([&] { parse_shape(json.dump(), "m"); }), "at most 1000000"));
}

TEST(ExpertsAdapters, AreInAttentionOnly) {
  ModelShape shape = small_shape("dots1");
  shape.lora.rank = 4;
  EXPECT_EQ(targets_of(shape), "q,v");
  shape.lora.targets = "q_proj,o,k";
  EXPECT_EQ(targets_of(shape), "q,k,o");
  for (const char* const targets : {"all", "q,gate", "up_proj", "fc", "down_proj", "proj2"}) {
    shape.lora.targets = targets;
    const std::string problem = error_of([&] { check_lora(shape); });
    EXPECT_TRUE(contains(problem, "--lora-targets")) << targets << problem;
    EXPECT_TRUE(contains(problem, "attention of models with experts only")) << problem;
    EXPECT_TRUE(contains(problem, "q, k, v, o")) << problem;
  }
  shape.lora.targets = "q";
  shape.experts.bias_rate = 0.001;
  EXPECT_TRUE(contains(error_of([&] { check_lora(shape); }), "biases of the frozen model"));
  shape.experts.bias_rate = 0;
  EXPECT_NO_THROW(check_lora(shape));
  shape.lora.targets = "x";
  EXPECT_TRUE(contains(error_of([&] { check_lora(shape); }), "got \"x\""));
}

// The base of adapters may be a folder, whose buffers are not part of the fingerprint: they are not
// frozen parameters.
TEST(ExpertsAdapters, ReadTheirBaseFromAFolderOrACheckpoint) {
  const TemporaryFolder dir;
  ModelShape shape = small_shape("dots1");
  make_folder(dir / "hub", shape);
  make_checkpoint(dir / "run", shape);
  ModelShape adapted = shape;
  adapted.lora = {2, 2, "q,v"};
  adapted.experts.balance_loss = 0.5;  // a setting of the training of adapters
  for (const char* const base : {"hub", "run"}) {
    const MergedModel::Read read = open_base(dir / base, adapted);
    MergedModel merged(adapted, read,
                       [](const std::string&, const std::vector<tessera::Run>& runs, float* into) {
                         for (const tessera::Run& run : runs) {
                           std::fill_n(into + run.local, run.count, 0.5f);
                         }
                       });
    for (const ParamPieces& param : pieces_of(shape)) {
      const std::int64_t size = elements(param.shape);
      std::vector<float> got(static_cast<std::size_t>(size));
      merged.read(param.param, {{0, 0, size}}, got.data());
      // alpha / rank · B A adds 1 · 2 · 0.25 to the rows of q and v.
      const bool qkv = param.param.ends_with("qkv.weight");
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t row = i / shape.hidden;
        const bool is_k = row >= shape.q_width() && row < shape.q_width() + shape.kv_width();
        ASSERT_EQ(got[static_cast<std::size_t>(i)],
                  value_of(param.param, i) + (qkv && !is_k ? 0.5f : 0.0f))
            << base << param.param << i;
      }
    }
  }
  ModelShape other = adapted;
  other.experts.per_token = 1;
  EXPECT_TRUE(contains(error_of([&] { open_base(dir / "hub", other); }), "different model"));
}

}  // namespace
}  // namespace tessera::huggingface
