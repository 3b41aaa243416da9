#include "tessera/huggingface/config_fields.h"

namespace tessera::huggingface {

const std::set<std::string, std::less<>>& harmless_fields() {
  static const std::set<std::string, std::less<>> names = {
      // where it comes from, and how it lies in files
      "_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype",
      "_commit_hash", "use_bfloat16", "torchscript", "return_dict", "unsloth_version",
      "unsloth_fixed", "model_name",
      // which kernels compute it
      "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "use_cache",
      "pretraining_tp", "chunk_size_feed_forward", "gradient_checkpointing", "output_attentions",
      "output_hidden_states", "is_decoder", "cross_attention_hidden_size", "use_flash_attention_2",
      // ids of special tokens, names of classes, and losses of other tasks
      "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
      "decoder_start_token_id", "tokenizer_class", "id2label", "label2id", "num_labels",
      "problem_type", "finetuning_task", "task_specific_params", "prefix", "summary_activation",
      "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
      "predict_special_tokens", "tf_legacy_loss", "tie_encoder_decoder", "n_ctx",
      // how texts are generated with it
      "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
      "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
      "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
      "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
      "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
      "suppress_tokens", "begin_suppress_tokens"};
  return names;
}

}  // namespace tessera::huggingface
