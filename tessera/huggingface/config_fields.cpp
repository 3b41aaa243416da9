#include "tessera/huggingface/config_fields.h"

#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

constexpr std::int64_t kMostSize = (std::int64_t{1} << 31) - 1;  // products of two do not overflow

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
      (value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{kMostSize})) {
    refuse(name, *value, str("a whole number of at least ", least));
  }
  const auto number = value->get<std::int64_t>();
  if (number < least || number > kMostSize) {
    refuse(name, *value, str("a whole number from ", least, " to ", kMostSize));
  }
  return number;
}

std::int64_t Fields::needed(const std::string& name) {
  if (const auto value = whole(name)) return *value;
  throw DataError(
      str(where_, ": ", quote(name), " is missing; without it the size of the model is not known"));
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
  throw DataError(str(where_, ": ", quote(name), " is missing; wanted a number"));
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
  if (!value->is_string()) refuse(name, *value, "a text");
  return value->get<std::string>();
}

void Fields::only(const std::string& name, bool wanted) {
  if (flag(name, wanted) == wanted) return;
  throw DataError(str(where_, ": ", quote(name), " is ", !wanted,
                      ", which changes what the model computes, and Tessera's models have it as ",
                      wanted));
}

void Fields::refuse(const std::string& name, const Json& got, const std::string& wanted) const {
  std::string shown = got.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw DataError(str(where_, ": ", quote(name), " is ", shown, "; wanted ", wanted));
}

void Fields::finish(const std::set<std::string, std::less<>>& harmless) const {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name) || harmless.contains(name)) continue;
    const bool off = value.is_null() || value == false ||
                     ((value.is_structured() || value.is_string()) && value.empty());
    if (!off) unknown.push_back(quote(name));
  }
  if (unknown.empty()) return;
  throw DataError(str(where_, ": nothing is known of ", join(unknown, ", "),
                      ", which may change what the model computes; remove what does not from a "
                      "copy of the file"));
}

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
