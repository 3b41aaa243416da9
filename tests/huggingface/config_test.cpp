// Conversion of config.json to the shape of a model and back: supported, rejected and ignored
// fields.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/shape_json.h"
#include "tests/huggingface/made.h"
#include "tests/text.h"

namespace tessera::huggingface {
namespace {

using Json = nlohmann::json;

// In the format that transformers writes.
Json llama() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2, "head_dim": 8, "hidden_act": "silu",
    "hidden_size": 16, "initializer_range": 0.03, "intermediate_size": 20,
    "max_position_embeddings": 2048, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1,
    "pad_token_id": null, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
    "rope_parameters": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 64, "rope_theta": 500000.0, "rope_type": "llama3"},
    "tie_word_embeddings": false, "transformers_version": "5.22.2", "use_cache": true,
    "vocab_size": 50})");
}
Json gpt2() {
  return Json::parse(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 16, "n_head": 2,
    "n_layer": 1, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true}},
    "vocab_size": 50257})");
}
Json mistral() {
  Json json = llama();
  for (const char* const name : {"attention_bias", "mlp_bias", "rope_parameters"}) json.erase(name);
  json["model_type"] = "mistral";
  json["rope_theta"] = 1000000.0;
  json["sliding_window"] = 32;
  return json;
}
Json qwen2() {
  Json json = mistral();
  json["model_type"] = "qwen2";
  json["use_sliding_window"] = false;
  json["max_window_layers"] = 2;
  return json;
}

ModelShape shape_of(const Json& json) { return parse_config(json.dump(), "config.json").shape; }
std::string problem_of(const Json& json) {
  return error_of([&] { shape_of(json); });
}

TEST(Config, ReadsEveryFamily) {
  const ModelShape l = shape_of(llama());
  EXPECT_EQ(l.layers, 3);
  EXPECT_EQ(l.hidden, 16);
  EXPECT_EQ(l.heads, 2);
  EXPECT_EQ(l.kv_heads, 1);
  EXPECT_EQ(l.ffn, 20);
  EXPECT_EQ(l.vocab, 50);
  EXPECT_EQ(l.head_dim(), 8);
  EXPECT_EQ(l.positions, 0);
  EXPECT_EQ(l.context, 2048);
  EXPECT_TRUE(l.swiglu);
  EXPECT_FALSE(l.tied);
  EXPECT_EQ(l.biases, Biases(false));
  EXPECT_EQ(l.norm_eps, 1e-6);
  EXPECT_EQ(l.rotary_base, 5e5);
  EXPECT_EQ(l.init_range, 0.03);
  EXPECT_EQ(l.rotary_scaling, (RotaryScaling{RotaryScaling::Kind::llama3, 8, 1, 4, 64}));
  const Config g = parse_config(gpt2().dump(), "c");
  EXPECT_EQ(g.shape.ffn, 64);
  EXPECT_EQ(g.shape.positions, 1024);
  EXPECT_TRUE(g.shape.tied);
  EXPECT_EQ(g.shape.biases, Biases(true));
  EXPECT_EQ(g.shape.activation, Activation::gelu_tanh);
  EXPECT_EQ(g.dropout, 0.1);
  EXPECT_EQ(shape_of(mistral()).window, 32);
  EXPECT_EQ(shape_of(mistral()).rotary_base, 1e6);
  EXPECT_EQ(shape_of(qwen2()).window, 0);
  EXPECT_EQ(shape_of(qwen2()).biases, Biases(true, false, false, false));
}

TEST(Config, ReadsFieldsThatAffectTheComputation) {
  Json json = llama();
  json["head_dim"] = 12;
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  json["tie_word_embeddings"] = true;
  ModelShape shape = shape_of(json);
  EXPECT_EQ(shape.head_dim(), 12);
  EXPECT_EQ(shape.biases, Biases(true, true, true, false));
  EXPECT_TRUE(shape.tied);
  // Older names of the rotary settings.
  json.erase("rope_parameters");
  json["rope_theta"] = 123.0;
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  shape = shape_of(json);
  EXPECT_EQ(shape.rotary_base, 123);
  EXPECT_EQ(shape.rotary_scaling.kind, RotaryScaling::Kind::linear);
  EXPECT_EQ(shape.rotary_scaling.factor, 2);
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(shape_of(json).rotary_scaling.kind, RotaryScaling::Kind::none);
  json.erase("rope_theta");
  EXPECT_EQ(shape_of(json).rotary_base, 1e4);
  json.erase("num_key_value_heads");
  EXPECT_EQ(shape_of(json).kv_heads, 2);

  json = gpt2();
  json["n_inner"] = 40;
  json["activation_function"] = "gelu";
  json["layer_norm_epsilon"] = 0.5;
  shape = shape_of(json);
  EXPECT_EQ(shape.ffn, 40);
  EXPECT_EQ(shape.activation, Activation::gelu);
  EXPECT_EQ(shape.norm_eps, 0.5);
  json["hidden_size"] = 16;  // the same size under its other name
  EXPECT_EQ(shape_of(json).hidden, 16);
  json.erase("n_embd");
  json["hidden_size"] = 24;
  EXPECT_EQ(shape_of(json).hidden, 24);

  json = qwen2();
  json["use_sliding_window"] = true;
  EXPECT_EQ(shape_of(json).window, 32);
  EXPECT_EQ(shape_of(json).window_from, 2);
  json["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(shape_of(json).window_from, 1);
  json["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(shape_of(json).window, 0);
  json = mistral();
  json["sliding_window"] = nullptr;
  EXPECT_EQ(shape_of(json).window, 0);
  json.erase("sliding_window");  // transformers' default
  EXPECT_EQ(shape_of(json).window, 4096);
}

TEST(Config, ReadsYarnAndDynamicScaling) {
  // The older form, as in Qwen2.5's readme.
  Json json = qwen2();
  json["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  RotaryScaling wanted{RotaryScaling::Kind::yarn, 4, 1, 4, 512};
  EXPECT_EQ(shape_of(json).rotary_scaling, wanted);
  EXPECT_EQ(shape_of(json).rotary_base, 1e6);
  json["rope_scaling"].erase("original_max_position_embeddings");
  wanted.original_positions = 2048;  // max_position_embeddings
  EXPECT_EQ(shape_of(json).rotary_scaling, wanted);
  // The newer form, with all fields.
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_type", "yarn"},
                             {"rope_theta", 5e5},
                             {"factor", 4},
                             {"original_max_position_embeddings", 512},
                             {"beta_fast", 24.0},
                             {"beta_slow", 2},
                             {"attention_factor", 1.25},
                             {"mscale", 0.5},
                             {"mscale_all_dim", 0.75},
                             {"truncate", false},
                             {"partial_rotary_factor", 1}};
  wanted = {RotaryScaling::Kind::yarn, 4, 1, 4, 512, 24, 2, false, 1.25, 0.5, 0.75};
  EXPECT_EQ(shape_of(json).rotary_scaling, wanted);
  EXPECT_EQ(shape_of(json).rotary_base, 5e5);
  const ModelShape back = parse_config(config_json(shape_of(json), "float32"), "config.json").shape;
  EXPECT_EQ(back.rotary_scaling, wanted);
  json["rope_parameters"]["truncate"] = nullptr;  // false in transformers
  EXPECT_FALSE(shape_of(json).rotary_scaling.truncate);
  json["rope_parameters"].erase("truncate");
  EXPECT_TRUE(shape_of(json).rotary_scaling.truncate);

  // Invalid values are rejected by field name.
  for (const auto& [name, value] : {std::pair<const char*, Json>{"beta_fast", 0.5},
                                    {"beta_slow", "1"},
                                    {"truncate", 1},
                                    {"attention_factor", 0},
                                    {"mscale", -1},
                                    {"factor", nullptr},
                                    {"long_factor", {1.0, 2.0}},
                                    {"original_max_position_embeddings", 0},
                                    {"rope_type", "longrope"},
                                    {"partial_rotary_factor", 0.5}}) {
    Json invalid = json;
    invalid["rope_parameters"][name] = value;
    const std::string problem = problem_of(invalid);
    EXPECT_TRUE(contains(problem, value == "longrope" ? "longrope" : name)) << name << problem;
  }

  json = llama();
  json.erase("rope_parameters");
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  const ModelShape dynamic = shape_of(json);
  EXPECT_EQ(dynamic.rotary_scaling, (RotaryScaling{RotaryScaling::Kind::dynamic, 2}));
  EXPECT_EQ(dynamic.longest(), 2048);
  json.erase("max_position_embeddings");
  EXPECT_TRUE(contains(problem_of(json), "max_position_embeddings")) << problem_of(json);
  json["rope_scaling"]["type"] = "yarn";
  EXPECT_TRUE(contains(problem_of(json), "max_position_embeddings")) << problem_of(json);
}

TEST(Config, RejectsUnsupportedFieldsByName) {
  struct Case {
    Json base;
    const char* name;
    Json value;
  };
  const Json longrope = {{"rope_type", "longrope"}, {"factor", 2.0}};
  const std::vector<Case> cases = {
      {llama(), "hidden_act", "relu"},
      {llama(), "rope_scaling", longrope},
      {llama(), "partial_rotary_factor", 0.5},
      {llama(), "model_type", "gemma"},
      {llama(), "quantization_config", {{"bits", 4}}},
      {llama(), "auto_map", {{"AutoModel", "x.y"}}},
      {llama(), "logit_scale", 0.5},
      {llama(), "rope_interleaved", true},
      {llama(), "quantization", {{"bits", 4}}},
      {llama(), "num_experts", 8},
      {gpt2(), "embedding_multiplier", 12.0},
      {llama(), "sliding_window", 16},
      {llama(), "is_encoder_decoder", true},
      {llama(), "is_causal", false},  // false is not the default
      {qwen2(), "is_causal", false},
      {gpt2(), "is_causal", false},
      {llama(), "attn_logit_softcapping", 50.0},
      {llama(), "final_logit_softcapping", 30.0},
      {llama(), "use_qk_norm", true},
      {llama(), "attention_multiplier", 0.5},
      {llama(), "original_max_position_embeddings", 64},
      {llama(), "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}},
      {qwen2(), "mlp_bias", true},
      {mistral(), "use_sliding_window", true},
      {mistral(), "max_window_layers", 2},
      {llama(), "hidden_size", "16"},
      {llama(), "hidden_size", 16.0},
      {llama(), "hidden_size", 0},
      {llama(), "num_hidden_layers", -1},
      {llama(), "vocab_size", nullptr},
      {llama(), "num_hidden_layers", 18446744073709551615u},
      {llama(), "rms_norm_eps", "1e-5"},
      {llama(), "rms_norm_eps", -1},
      {llama(), "tie_word_embeddings", "yes"},
      {llama(), "layer_types", {"full_attention"}},
      {gpt2(), "scale_attn_weights", false},
      {gpt2(), "scale_attn_by_inverse_layer_idx", true},
      {gpt2(), "add_cross_attention", true},
      {gpt2(), "activation_function", "silu"},
      {gpt2(), "hidden_size", 32},  // another name for n_embd, which is 16
      {gpt2(), "max_position_embeddings", 512},
      {gpt2(), "num_attention_heads", 4},
      {gpt2(), "num_hidden_layers", 2},
      {gpt2(), "pruned_heads", {{"0", {1}}}},
      {mistral(), "attention_bias", true},
      {llama(), "n_group", 2},
      {mistral(), "layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
      {mistral(), "layer_types", {"full_attention", "full_attention", "full_attention"}},
      {qwen2(), "layer_types", {"sliding_attention", "full_attention", "full_attention"}},
      {qwen2(), "layer_types", {"full_attention", "full_attention", "sliding_attention"}},
  };
  for (const Case& each : cases) {
    Json json = each.base;
    json[each.name] = each.value;
    if (std::string(each.name) == "rope_scaling") json.erase("rope_parameters");
    const std::string problem = problem_of(json);
    EXPECT_TRUE(contains(problem, each.name)) << each.name << ": " << problem;
    EXPECT_TRUE(contains(problem, "config.json")) << problem;
  }
  // Fields of the rotary scaling too.
  Json json = llama();
  for (const char* const part : {"factor", "low_freq_factor", "original_max_position_embeddings"}) {
    json = llama();
    json["rope_parameters"].erase(part);
    EXPECT_TRUE(contains(problem_of(json), part)) << problem_of(json);
  }
  json = llama();
  json["rope_parameters"]["attention_factor"] = 2.0;
  EXPECT_TRUE(contains(problem_of(json), "attention_factor"));
}

TEST(Config, IgnoresUnknownFieldsWithOneNote) {
  const auto notes_of = [](const Json& json) {
    return parse_config(json.dump(), "config.json").notes;
  };
  Json json = llama();
  json["use_something_new"] = false;
  json["another"] = nullptr;
  json["list"] = Json::array();
  EXPECT_TRUE(notes_of(json).empty());
  json["use_something_new"] = true;
  json["second"] = 3;
  json["rope_parameters"]["third"] = "x";
  ASSERT_EQ(notes_of(json).size(), 1u);
  EXPECT_TRUE(contains(notes_of(json)[0], "\"second\", \"use_something_new\", \"third\""))
      << notes_of(json)[0];
  for (int i = 0; i < 1000; ++i) json[str("\x1b[1m", i)] = i;
  EXPECT_LT(notes_of(json)[0].size(), 2000u);
  EXPECT_FALSE(contains(notes_of(json)[0], "\x1b"));
}

// Additional fields in the config.json of published models, with typical values. None affects the
// computation, so none is rejected or needs a note.
TEST(Config, AcceptsFieldsOfPublishedModels) {
  const Json of_llama = Json::parse(R"({
    "is_llama_config": true, "rope_interleaved": false, "max_sequence_length": 2048,
    "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16"}},
    "unsloth_version": "2024.9", "unsloth_fixed": true, "_attn_implementation_autoset": true,
    "pad_token_id": -1, "use_flash_attn": true, "_flash_attn_2_enabled": true,
    "cache_implementation": null, "mlp_bias": false, "attention_bias": false,
    "quantization_config": null, "auto_map": {}, "_commit_hash": "4e20de", "eos_token_ids": [2],
    "use_sliding_window": false, "sliding_window": 131072, "max_window_layers": 28,
    "num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
    "classifier_dropout": null, "torchscript": false, "chunk_size_feed_forward": 0,
    "logit_scale": 1.0, "partial_rotary_factor": 1.0, "tokenizer_class": "LlamaTokenizer"})");
  const Json of_gpt2 = Json::parse(R"({
    "_num_labels": 1, "n_special": 0, "predict_special_tokens": true, "output_past": true,
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "gradient_checkpointing": false,
    "reorder_and_upcast_attn": false, "scale_attn_by_inverse_layer_idx": false,
    "scale_attn_weights": true, "finetuning_task": null, "num_labels": 2, "pruned_heads": {},
    "torchscript": false, "use_bfloat16": false, "use_cache": true, "do_sample": true,
    "max_length": 50, "n_inner": null, "bad_words_ids": null, "prefix": null,
    "transformers.js_config": {"use_external_data_format": true}})");
  for (const auto& [base, more] : {std::pair(llama(), of_llama), std::pair(gpt2(), of_gpt2)}) {
    for (const auto& [name, value] : more.items()) {
      // Only together with use_sliding_window.
      if (name == "sliding_window" || name == "max_window_layers") continue;
      Json json = base;
      json[name] = value;
      EXPECT_EQ(problem_of(json), "") << name;
      EXPECT_TRUE(parse_config(json.dump(), "c").notes.empty()) << name;
    }
    Json all = base;
    all.update(more);
    EXPECT_EQ(problem_of(all), "");
    EXPECT_EQ(shape_json(shape_of(all)), shape_json(shape_of(base)));
  }
}

// Sets what a config.json cannot hold to the values that reading it gives.
void drop_settings_of_training(ModelShape& shape) {
  Experts& experts = shape.experts;
  experts.balance_loss = experts.z_loss = experts.jitter = experts.bias_rate = 0;
  if (experts.any() && experts.dense_layers == 0) shape.ffn = experts.width;  // no layer has it
}

TEST(Config, RoundTripsEveryShape) {
  int count = 0;
  std::vector<std::string> refused;
  for (std::vector<ModelShape> shapes : {small_shapes(), model_shapes()}) {
    for (ModelShape& shape : shapes) {
      drop_settings_of_training(shape);
      if (!error_of([&] { config_json(shape, "bfloat16"); }).empty()) {
        refused.push_back(shape.name);
        continue;
      }
      const Config back = parse_config(config_json(shape, "bfloat16"), shape.name);
      shape.family = family_of(shape);
      if (shape.rotary() && shape.context == 0) shape.context = 2048;
      if (shape.window == 0) shape.window_from = 0;
      if (shape.head_width * shape.heads == shape.hidden) shape.head_width = 0;
      const std::string name = shape.name;
      EXPECT_EQ(parse_shape(shape_json(shape), name).name, name);
      shape.name.clear();
      EXPECT_EQ(shape_json(back.shape), shape_json(shape)) << name;
      EXPECT_EQ(shape_json(parse_shape(shape_json(shape), name)), shape_json(shape)) << name;
      ++count;
    }
  }
  EXPECT_GT(count, 20);
  // A gate of the shared experts; shared experts with softmax scores.
  EXPECT_EQ(refused, (std::vector<std::string>{"qwen1.5-moe-a2.7b", "deepseek-moe-16b"}));
}

TEST(Config, RejectsShapesOfNoFamily) {
  ModelShape shape = small_shape("llama");
  shape.biases.norm = true;
  EXPECT_TRUE(contains(error_of([&] { config_json(shape, "float32"); }), "shift"));
  shape = small_shape("gpt2");
  shape.window = 4;
  EXPECT_TRUE(contains(error_of([&] { config_json(shape, "float32"); }), "window"));
  shape = small_shape("mistral");
  shape.window_from = 1;
  EXPECT_TRUE(contains(error_of([&] { config_json(shape, "float32"); }), "window"));
}

}  // namespace
}  // namespace tessera::huggingface
