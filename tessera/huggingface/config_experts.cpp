// Fields of config.json for mixtures of experts.

#include "tessera/huggingface/config_experts.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/families.h"

namespace tessera::huggingface {
namespace {

// Reads the number of experts, which has two names. transformers 5 writes num_local_experts for all
// families, and reads both.
std::int64_t expert_count(Fields& fields, const char* name, std::optional<std::int64_t> absent) {
  const char* const common = "num_local_experts";
  const auto count = fields.whole(name), other = fields.whole(common);
  if (count && other && count != other) {
    fields.refuse(common, *fields.find(common),
                  str("equal to ", quote(name), ", which is another name for it"));
  }
  if (count || other) return count ? *count : *other;
  return absent ? *absent : fields.needed(name);
}

// Reads which layers have an ordinary MLP: some first ones.
std::int64_t dense_layers(Fields& fields, const ModelShape& shape) {
  const char* const step = "decoder_sparse_step";
  if (fields.whole(step).value_or(1) != 1) {
    fields.refuse(step, *fields.find(step),
                  "1: Tessera has experts in all layers but some first ones");
  }
  const char* const list = "mlp_only_layers";
  const auto* const layers = fields.find(list);
  if (layers == nullptr) return 0;
  const auto refuse_list = [&] {
    fields.refuse(list, *layers, "a list of the first layers, 0, 1, …, or empty");
  };
  if (!layers->is_array()) refuse_list();
  std::vector<std::int64_t> numbers;
  for (const auto& layer : *layers) {
    if (!layer.is_number_integer()) refuse_list();
    numbers.push_back(layer.get<std::int64_t>());
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  const auto count = static_cast<std::int64_t>(numbers.size());
  if (count > shape.layers) refuse_list();
  for (std::int64_t i = 0; i < count; ++i) {
    if (numbers[static_cast<std::size_t>(i)] != i) refuse_list();
  }
  return count;
}

// Refuses a selection of experts in two stages, first of groups and then in them.
void refuse_groups(Fields& fields) {
  for (const char* const name : {"n_group", "topk_group"}) {
    if (fields.whole(name).value_or(1) == 1) continue;
    fields.refuse(name, *fields.find(name),
                  "1: Tessera selects experts among all of them, not within groups");
  }
}

void read_dots1(Fields& fields, ModelShape& shape) {
  Experts& experts = shape.experts;
  experts.count = expert_count(fields, "n_routed_experts", std::nullopt);
  experts.per_token = fields.needed("num_experts_per_tok");
  experts.width = fields.whole("moe_intermediate_size").value_or(1408);
  // At most 2^31 each.
  experts.shared_width = fields.needed("n_shared_experts") * experts.width;
  experts.scores = RouterScores::sigmoid;
  experts.selection_bias = true;
  experts.normalized = fields.flag("norm_topk_prob", false);
  experts.scale = fields.number("routed_scaling_factor", 1, 0, 1e6);
  experts.dense_layers =
      std::min(shape.layers, fields.whole("first_k_dense_replace", 0).value_or(0));
  refuse_groups(fields);
  // transformers does not read the next fields; in files for other programs they name what it does.
  for (const char* const name : {"scoring_func", "topk_method"}) {
    const std::string method = fields.word(name, "noaux_tc");
    if (method == "noaux_tc" || (method == "sigmoid" && std::string(name) == "scoring_func")) {
      continue;
    }
    fields.refuse(name, *fields.find(name),
                  "noaux_tc: sigmoid scores, and biases that only select experts");
  }
  if (fields.whole("moe_layer_freq").value_or(1) != 1) {
    fields.refuse("moe_layer_freq", *fields.find("moe_layer_freq"),
                  "1: Tessera has experts in all layers but some first ones");
  }
}

}  // namespace

std::string unsupported_property(std::string_view model_type) {
  struct Property {
    const char* type;
    const char* text;
  };
  static constexpr const char* kLatent =
      "multi-head latent attention, and experts selected within groups";
  static constexpr Property kProperties[] = {
      {"deepseek_v2", kLatent},
      {"deepseek_v3", kLatent},
      {"deepseek_v32", kLatent},
      {"kimi_k2", kLatent},
      {"longcat_flash", kLatent},
      {"glm4_moe", "partial rotary positions"},
      {"gpt_oss", "attention sinks"},
      {"granitemoe", "multipliers of embeddings, branches and logits"},
      {"llama4", "layers without positions, and chunks of attention"},
      {"llama4_text", "layers without positions, and chunks of attention"},
      {"olmoe", "norms over all heads of queries and keys together"},
      {"phimoe", "experts selected by masked softmaxes"},
      {"qwen2_moe", "a gate of its shared experts"},
      {"qwen3_next", "layers of linear attention"},
  };
  for (const Property& each : kProperties) {
    if (model_type == each.type) return each.text;
  }
  return "";
}

void read_experts(Fields& fields, ModelShape& shape, std::vector<std::string>& notes) {
  if (!format_of(shape.family).experts) return;
  Experts& experts = shape.experts;
  if (shape.family == Family::dots1) {
    read_dots1(fields, shape);
  } else if (shape.family == Family::mixtral) {
    experts.count = expert_count(fields, "num_experts", 8);
    experts.per_token = fields.whole("num_experts_per_tok").value_or(2);
    experts.width = shape.ffn;
    if (fields.number("router_jitter_noise", 0, 0, 1) > 0) {
      notes.push_back(str(fields.where(),
                          ": \"router_jitter_noise\" is not used; in training transformers "
                          "multiplies the inputs of the experts by random numbers. "
                          "--router-jitter does so with the router's input only"));
    }
  } else {
    experts.count = expert_count(fields, "num_experts", 128);
    experts.per_token = fields.whole("num_experts_per_tok").value_or(8);
    experts.width = fields.whole("moe_intermediate_size").value_or(768);
    experts.normalized = fields.flag("norm_topk_prob", false);
    experts.dense_layers = dense_layers(fields, shape);
  }
  const double loss = fields.number("router_aux_loss_coef", 0.001, 0, 1e6);
  if (!fields.flag("output_router_logits", false) || loss == 0) return;
  // The loss of transformers is computed over all layers at once and not divided by the number of
  // experts of a token: [Note: balance] in experts/layer.h.
  const auto sparse = static_cast<double>(std::max<std::int64_t>(1, shape.expert_layers()));
  notes.push_back(str(fields.where(), ": \"router_aux_loss_coef\" ", loss,
                      " is not used; it changes training only. A loss of the same strength is "
                      "--balance-loss ",
                      loss * static_cast<double>(experts.per_token) / sparse));
}

std::string experts_mismatch(const ModelShape& shape, Family family) {
  const Experts& has = shape.experts;
  if (has.any() != format_of(family).experts) return has.any() ? "experts" : "no experts";
  if (!has.any()) return "";
  if (!shape.rotary()) return "experts and learned positions";
  if (has.shared_gate) return "a gate of shared experts";
  if (shape.biases.mlp) return "experts with biases";
  const bool dots1 = family == Family::dots1;
  if ((has.scores == RouterScores::sigmoid) != dots1) {
    return dots1 ? "experts selected by softmax" : "experts selected by sigmoid";
  }
  if (dots1) {
    if (!has.selection_bias) return "experts selected by sigmoid without biases";
    if (has.shared_width == 0) return "experts selected by sigmoid without a shared expert";
    if (has.shared_width % has.width != 0) {
      return str("shared experts of width ", has.shared_width, ", not a multiple of the others' ",
                 has.width);
    }
    return "";
  }
  if (has.selection_bias) return "biases for the selection of experts and softmax scores";
  if (has.shared_width > 0) return "shared experts without a gate, and softmax scores";
  if (has.scale != 1) return "a scaled sum of experts and softmax scores";
  if (family == Family::mixtral) {
    if (!has.normalized) return "experts whose weights do not add up to 1, and no norms of q and k";
    if (has.dense_layers > 0) return "first layers without experts and no norms of q and k";
  }
  return "";
}

void write_experts(nlohmann::ordered_json& json, const ModelShape& shape, Family family) {
  if (!format_of(family).experts) return;
  const Experts& experts = shape.experts;
  json["num_experts_per_tok"] = experts.per_token;
  if (family == Family::mixtral) {
    json["num_local_experts"] = experts.count;
    json["intermediate_size"] = experts.width;
  } else {
    json["moe_intermediate_size"] = experts.width;
    json["norm_topk_prob"] = experts.normalized;
  }
  if (family == Family::qwen3_moe) {
    json["num_experts"] = experts.count;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = nlohmann::ordered_json::array();
    for (std::int64_t i = 0; i < experts.dense_layers; ++i) json["mlp_only_layers"].push_back(i);
  }
  if (family == Family::dots1) {
    json["n_routed_experts"] = experts.count;
    json["n_shared_experts"] = experts.shared_width / experts.width;
    json["first_k_dense_replace"] = experts.dense_layers;
    json["routed_scaling_factor"] = experts.scale;
    json["n_group"] = json["topk_group"] = 1;
    json["scoring_func"] = "noaux_tc";
  }
  json["output_router_logits"] = false;
}

}  // namespace tessera::huggingface
