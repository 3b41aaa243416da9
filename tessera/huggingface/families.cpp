#include "tessera/huggingface/families.h"

namespace tessera::huggingface {
namespace {

using Layers = FamilyWindows::Layers;

FamilyNames gpt2_names() {
  return {.prefix = "transformer.",
          .embedding = "wte",
          .positions = "wpe",
          .layers = "h.",
          .norm1 = "ln_1",
          .qkv = {"attn.c_attn"},
          .proj = "attn.c_proj",
          .norm2 = "ln_2",
          .fc = {"mlp.c_fc"},
          .proj2 = "mlp.c_proj",
          .norm = "ln_f",
          .transposed = true};
}

FamilyNames llama_names() {
  return {.prefix = "model.",
          .embedding = "embed_tokens",
          .layers = "layers.",
          .norm1 = "input_layernorm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm",
          .proj = "self_attn.o_proj",
          .norm2 = "post_attention_layernorm",
          .fc = {"mlp.gate_proj", "mlp.up_proj"},
          .proj2 = "mlp.down_proj",
          .norm = "norm"};
}

FamilyNames phi3_names() {
  FamilyNames names = llama_names();
  names.qkv = {"self_attn.qkv_proj"};
  names.fc = {"mlp.gate_up_proj"};
  return names;
}

FamilyNames gemma_names() {
  FamilyNames names = llama_names();
  names.post_norm1 = "post_attention_layernorm";
  names.norm2 = "pre_feedforward_layernorm";
  names.post_norm2 = "post_feedforward_layernorm";
  return names;
}

FamilyNames mixtral_names() {
  FamilyNames names = llama_names();
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts.";
  names.expert_fc = {"w1", "w3"};
  names.expert_proj2 = "w2";
  return names;
}

// Qwen3-MoE has none of the last three.
FamilyNames dots1_names() {
  FamilyNames names = llama_names();
  names.router = "mlp.gate";
  names.experts = "mlp.experts.";
  names.expert_fc = {"gate_proj", "up_proj"};
  names.expert_proj2 = "down_proj";
  names.selection_bias = "mlp.gate.e_score_correction_bias";
  names.shared_fc = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
  names.shared_proj2 = "mlp.shared_experts.down_proj";
  return names;
}

std::vector<FamilyFormat> make_formats() {
  return {
      {.family = Family::gpt2, .class_name = "GPT2LMHeadModel", .names = gpt2_names()},
      {.family = Family::llama,
       .class_name = "LlamaForCausalLM",
       .names = llama_names(),
       .biases = FamilyBiases::by_field,
       .mlp_biases = true,
       .optional_kv_heads = true},
      {.family = Family::qwen2,
       .class_name = "Qwen2ForCausalLM",
       .names = llama_names(),
       .biases = FamilyBiases::qkv,
       .windows = {.layers = Layers::from_layer, .has_switch = true, .from = 28}},
      {.family = Family::mistral,
       .class_name = "MistralForCausalLM",
       .names = llama_names(),
       .windows = {.layers = Layers::all}},
      {.family = Family::qwen3,
       .class_name = "Qwen3ForCausalLM",
       .names = llama_names(),
       .biases = FamilyBiases::by_field,
       .head_width = 128,
       .qk_norm = true,
       .windows = {.layers = Layers::from_layer, .has_switch = true, .from = 28}},
      {.family = Family::phi3,
       .class_name = "Phi3ForCausalLM",
       .names = phi3_names(),
       .optional_kv_heads = true,
       .norm_eps = 1e-5,
       .rotary_scaling = false,
       .windows = {.layers = Layers::all, .size = 0}},
      {.family = Family::gemma2,
       .class_name = "Gemma2ForCausalLM",
       .names = gemma_names(),
       .biases = FamilyBiases::by_field,
       .head_width = 256,
       .windows = {.layers = Layers::all_but_every_nth, .period = 2},
       .gemma = true,
       .logit_cap = 30,
       .attention_cap = 50},
      {.family = Family::gemma3,
       .class_name = "Gemma3ForCausalLM",
       .names = gemma_names(),
       .biases = FamilyBiases::by_field,
       .head_width = 256,
       .qk_norm = true,
       .rotary_base = 1e6,
       .window_rotary_base = 1e4,
       .windows = {.layers = Layers::all_but_every_nth,
                   .period = 6,
                   .period_field = "sliding_window_pattern"},
       .gemma = true},
      {.family = Family::mixtral,
       .class_name = "MixtralForCausalLM",
       .names = mixtral_names(),
       .norm_eps = 1e-5,
       .rotary_base = 1e6,
       .windows = {.layers = Layers::all, .size = 0},
       .experts = true},
      {.family = Family::qwen3_moe,
       .class_name = "Qwen3MoeForCausalLM",
       .names = dots1_names(),
       .biases = FamilyBiases::by_field,
       .qk_norm = true,
       .windows = {.layers = Layers::all, .has_switch = true},
       .experts = true},
      {.family = Family::dots1,
       .class_name = "Dots1ForCausalLM",
       .names = dots1_names(),
       .biases = FamilyBiases::by_field,
       .qk_norm = true,
       .windows = {.layers = Layers::from_layer, .from = 62},
       .experts = true},
  };
}

}  // namespace

const FamilyFormat& format_of(Family family) {
  static const std::vector<FamilyFormat> formats = make_formats();
  const FamilyFormat* llama = nullptr;
  for (const FamilyFormat& format : formats) {
    if (format.family == family) return format;
    if (format.family == Family::llama) llama = &format;
  }
  return *llama;
}

Family expert_family(const ModelShape& shape) {
  if (shape.experts.scores == RouterScores::sigmoid) return Family::dots1;
  return shape.qk_norm ? Family::qwen3_moe : Family::mixtral;
}

}  // namespace tessera::huggingface
