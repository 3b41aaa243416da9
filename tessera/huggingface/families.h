#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

// Names of a family's tensors, without ".weight" and ".bias". A linear of several names has its
// rows in as many tensors; null: the family has no such parameter.
struct FamilyNames {
  const char* prefix = nullptr;
  const char* embedding = nullptr;
  const char* positions = nullptr;
  const char* layers = nullptr;  // "layers." comes before the number of a layer
  const char* norm1 = nullptr;
  std::vector<const char*> qkv = {};
  const char* q_norm = nullptr;
  const char* k_norm = nullptr;
  const char* proj = nullptr;
  const char* post_norm1 = nullptr;
  const char* norm2 = nullptr;
  std::vector<const char*> fc = {};
  const char* proj2 = nullptr;
  const char* post_norm2 = nullptr;
  const char* norm = nullptr;
  bool transposed = false;  // linears are [in, out]
  // By default Tessera's names: models with experts of no family are listed, but not written.
  const char* router = "experts.router";
  const char* selection_bias = "experts.selection_bias";  // complete name
  const char* experts = "experts.";                       // before the number of an expert
  std::vector<const char*> expert_fc = {"fc"};
  const char* expert_proj2 = "proj2";
  std::vector<const char*> shared_fc = {"experts.shared.fc"};
  const char* shared_proj2 = "experts.shared.proj2";
  const char* shared_gate = "experts.shared_gate";
};

// Layers with an attention window, and the fields of config.json that select them.
struct FamilyWindows {
  enum class Layers : std::uint8_t { none, all, from_layer, all_but_every_nth };
  Layers layers = Layers::none;
  bool has_switch = false;             // "use_sliding_window", off by default
  std::int64_t size = 4096;            // default of "sliding_window"; 0: no window
  std::int64_t from = 0;               // default of "max_window_layers", with from_layer
  std::int64_t period = 0;             // n, with all_but_every_nth
  const char* period_field = nullptr;  // field that replaces `period`
};

// Biases of the linears of attention: none, those of queries, keys and values, or all of them if
// the field "attention_bias" is true.
enum class FamilyBiases : std::uint8_t { none, qkv, by_field };

// [Note: families] Properties of a family's files at Hugging Face: tensor names, and the fields of
// config.json with their defaults in transformers. To add a family whose models have only features
// of ModelShape, add its name to core/model_shape.{h,cpp} and its value to families.cpp.
struct FamilyFormat {
  Family family = Family::none;
  const char* class_name = nullptr;  // of transformers: "architectures"
  FamilyNames names;
  FamilyBiases biases = FamilyBiases::none;
  bool mlp_biases = false;         // if the field "mlp_bias" is true
  bool optional_kv_heads = false;  // "num_key_value_heads" may be missing; as many as heads
  std::int64_t head_width = 0;     // default of "head_dim"; 0: hidden / heads
  bool qk_norm = false;            // norms of queries and keys
  double norm_eps = 1e-6;          // default of "rms_norm_eps"
  double rotary_base = 1e4;        // default of "rope_theta"
  double window_rotary_base = 0;   // default of "rope_local_base_freq"; 0: no such field
  bool rotary_scaling = true;      // Tessera supports the scaling of the family
  FamilyWindows windows = {};
  bool experts = false;
  // Gemma: norms that multiply by 1 + weight and follow the branches too, a scaled embedding, a
  // tied head by default, "hidden_activation", "query_pre_attn_scalar", and these default caps.
  bool gemma = false;
  double logit_cap = 0;
  double attention_cap = 0;  // 0: the family has no cap of scores
};
// Returns the format of a family; that of llama for none.
const FamilyFormat& format_of(Family family);

// Returns the family that the export chooses for a model with experts of no family.
Family expert_family(const ModelShape& shape);

}  // namespace tessera::huggingface
