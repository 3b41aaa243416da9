#include "tessera/huggingface/config_fields.h"

#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

constexpr std::int64_t kMaxSize = (std::int64_t{1} << 31) - 1;  // products of two do not overflow

}  // namespace

const nlohmann::json* Fields::find(const std::string& name) {
  read_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::int64_t> Fields::whole(const std::string& name, std::int64_t least) {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{kMaxSize})) {
    refuse(name, *value, str("a whole number of at least ", least));
  }
  const auto number = value->get<std::int64_t>();
  if (number < least || number > kMaxSize) {
    refuse(name, *value, str("a whole number from ", least, " to ", kMaxSize));
  }
  return number;
}

std::int64_t Fields::needed(const std::string& name) {
  if (const auto value = whole(name)) return *value;
  throw DataError(
      str(where_, ": ", quote(name), " is missing; the size of the model depends on it"));
}

double Fields::number(const std::string& name, double otherwise, double least, double most) {
  const Json* const value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) refuse(name, *value, "a number");
  const auto got = value->get<double>();
  if (!(got >= least && got <= most)) {
    refuse(name, *value, str("a number from ", least, " to ", most));
  }
  return got;
}

double Fields::needed_number(const std::string& name, double least, double most) {
  if (has(name)) return number(name, 0, least, most);
  throw DataError(str(where_, ": ", quote(name), " is missing; must be a number"));
}

bool Fields::flag(const std::string& name, bool otherwise) {
  const Json* const value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(name, *value, "true or false");
  return value->get<bool>();
}

std::string Fields::word(const std::string& name, const std::string& otherwise) {
  const Json* const value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) refuse(name, *value, "a string");
  return value->get<std::string>();
}

void Fields::only(const std::string& name, bool wanted) {
  if (flag(name, wanted) == wanted) return;
  throw DataError(str(where_, ": ", quote(name), " is ", !wanted,
                      ", which changes what the model computes. Tessera supports only ", wanted));
}

void Fields::refuse(const std::string& name, const Json& got, const std::string& wanted) const {
  std::string shown = got.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw DataError(str(where_, ": ", quote(name), " is ", shown, "; must be ", wanted));
}

std::vector<std::string> Fields::finish(const FieldTable& table) const {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name) || table.harmless.contains(name)) continue;
    const bool off = value.is_null() || value == false ||
                     ((value.is_structured() || value.is_string()) && value.empty());
    if (off) continue;
    if (table.multipliers.contains(name) && value == 1) continue;
    if (table.computes.contains(name) && value.is_number() && value == 0) continue;
    if (table.computes.contains(name) || table.multipliers.contains(name)) {
      refuse(name, value,
             str("absent or off: it changes what the model computes, and Tessera's layers of this "
                 "family do not support it"));
    }
    unknown.push_back(quote(name));
  }
  return unknown;
}

const FieldTable& rope_fields() {
  static const FieldTable table = {
      {"finetuned"},
      {"long_factor", "short_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
       "mscale_all_dim", "low_freq_factor", "high_freq_factor", "mrope_section",
       "mrope_interleaved", "xdrope_section", "full_attention", "sliding_attention",
       "llama_4_scaling_beta", "alpha"},
      {"partial_rotary_factor", "long_mscale", "short_mscale"}};
  return table;
}

const FieldTable& config_fields() {
  static const FieldTable table = {
      {// origin and storage
       "_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype",
       "_commit_hash", "use_bfloat16", "torchscript", "return_dict", "unsloth_version",
       "unsloth_fixed", "model_name", "is_llama_config", "transformers.js_config",
       "max_sequence_length", "max_seq_length", "max_seq_len", "seq_length", "model_max_length",
       "output_past", "pad_vocab_size_multiple", "_sliding_window_pattern",
       // implementation of the computation
       "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "use_cache",
       "pretraining_tp", "chunk_size_feed_forward", "gradient_checkpointing", "output_attentions",
       "output_hidden_states", "is_decoder", "cross_attention_hidden_size", "use_flash_attention_2",
       "use_flash_attn", "_flash_attn_2_enabled", "cache_implementation", "fused_mlp",
       "fused_bias_fc",
       // ids of special tokens, names of classes, and losses of other tasks
       "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
       "eos_token_ids", "decoder_start_token_id", "tokenizer_class", "id2label", "label2id",
       "num_labels", "_num_labels", "problem_type", "finetuning_task", "task_specific_params",
       "prefix", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
       "summary_type", "summary_use_proj", "predict_special_tokens", "n_special", "tf_legacy_loss",
       "tie_encoder_decoder", "n_ctx", "classifier_dropout", "router_aux_loss_coef",
       // settings of generation
       "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
       "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
       "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
       "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
       "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
       "suppress_tokens", "begin_suppress_tokens"},
      {// attention
       "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern",
       "layer_types", "attention_chunk_size", "attention_bias", "qkv_bias", "use_qkv_bias",
       "attention_out_bias", "use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm",
       "qk_layer_norms", "clip_qkv", "attn_logit_softcapping", "attn_logit_softcap",
       "query_pre_attn_scalar", "alibi", "use_alibi", "attn_config", "multi_query", "kv_lora_rank",
       "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "num_kv_shared_layers",
       "attention_sinks", "attn_temperature_tuning", "no_rope_layers", "no_rope_layer_interval",
       "use_cross_attention", "cross_attention_layers", "bidirectional",
       "use_bidirectional_attention", "scale_attn_by_inverse_layer_idx", "add_cross_attention",
       "original_max_position_embeddings", "rotary_dim", "rope_interleaved", "rotary_interleaved",
       "rope_local_base_freq", "rope_ratio", "use_mrope", "use_dynamic_ntk", "use_logn_attn",
       // block structure
       "mlp_bias", "parallel_attn", "use_parallel_residual", "parallel_residual",
       "new_decoder_architecture", "hidden_activation", "use_post_norm", "post_norm",
       "normalize_embedding", "word_embed_proj_dim", "add_bias_linear", "num_experts",
       "num_local_experts", "n_routed_experts", "n_shared_experts",
       "shared_expert_intermediate_size", "num_experts_per_tok", "scoring_func", "topk_method",
       "moe_intermediate_size", "moe_num_experts", "moe_layer_freq", "first_k_dense_replace",
       "decoder_sparse_step", "mlp_only_layers", "num_nextn_predict_layers",
       "hidden_size_per_layer_input", "altup_num_inputs",
       // logits
       "final_logit_softcapping", "logits_soft_cap", "final_logits_softcap",
       // storage in another form
       "quantization", "compression_config", "sparsity_config", "text_config"},
      {"logit_scale", "attention_multiplier", "embedding_multiplier", "residual_multiplier",
       "logits_scaling", "scale_emb", "scale_depth", "embedding_scale", "rotary_pct", "rope_pct",
       "softmax_scale", "mup_width_multiplier", "n_group", "topk_group"}};
  return table;
}

}  // namespace tessera::huggingface
