#include "tessera/data/tokenizer_spec.h"

#include <algorithm>
#include <unordered_set>

#include "tessera/core/crypto.h"
#include "tessera/core/strict_json.h"
#include "tessera/data/tokenizer_fields.h"
#include "tessera/data/tokenizer_steps.h"

namespace tessera::data {
namespace {

using Json = nlohmann::json;

constexpr int kMaxNesting = 16;

TokenId id_in(const std::unordered_map<std::string, TokenId>& ids, const std::string& token,
              const std::string& where, std::string_view what) {
  const auto found = ids.find(token);
  if (found == ids.end()) {
    throw DataError(str(where, ": ", what, " ", quote(token), " is not in the vocabulary"));
  }
  return found->second;
}

void read_vocabulary(TokenizerFields& fields, BpeModel& model) {
  const Json& vocab = fields.need("vocab", "an object of tokens and their ids");
  if (!vocab.is_object()) fields.bad("vocab", "an object of tokens and their ids");
  std::vector<bool> seen(vocab.size() + vocab.size() / 8);  // vocabularies have few gaps
  std::unordered_set<TokenId> far;                          // ids beyond these
  model.ids.reserve(vocab.size());
  for (const auto& [token, number] : vocab.items()) {
    const auto id = static_cast<TokenId>(fields.count_of(number, "vocab"));
    const bool twice = id < seen.size() ? seen[id] : !far.insert(id).second;
    if (id < seen.size()) seen[id] = true;
    if (twice) {
      throw DataError(str(fields.where("vocab"), ": ", quote(token), " has id ", id,
                          ", which another token has too"));
    }
    model.ids.emplace(token, id);
  }
}

void read_merges(TokenizerFields& fields, BpeModel& model) {
  const std::string where = fields.where("merges");
  std::string left, right;
  for (const Json& merge : fields.list("merges")) {
    if (merge.is_string()) {  // "a b"
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        throw DataError(
            str(where, ": got ", quote(text), ", must be two tokens separated by a space"));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      throw DataError(str(where, ": got ", TokenizerFields::shown(merge),
                          ", must be two tokens, as \"a b\" or [\"a\", \"b\"]"));
    }
    model.merges.push_back({id_in(model.ids, left, where, "the token"),
                            id_in(model.ids, right, where, "the token"),
                            id_in(model.ids, left + right, where, "the result of a merge,")});
  }
}

BpeModel read_model(const Json& json, const std::string& where, std::string& missing_unknown) {
  TokenizerFields fields(json, where);
  const std::string type = fields.text("type", json.contains("merges") ? "BPE" : "");
  if (type != "BPE") fields.bad("type", "BPE, the only supported kind of model");
  BpeModel model;
  if (const Json* dropout = fields.get("dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0) {
      fields.refuse("dropout", "which makes the ids of a text random. Set it to null.");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.text(key, "").empty()) fields.refuse(key, "which is not supported");
  }
  read_vocabulary(fields, model);
  read_merges(fields, model);
  if (fields.get("unk_token") != nullptr) {
    const auto found = model.ids.find(fields.text("unk_token"));
    if (found == model.ids.end()) {
      missing_unknown = fields.text("unk_token");
    } else {
      model.unknown = found->second;
    }
  }
  model.fuse_unknown = fields.flag("fuse_unk", false);
  model.byte_fallback = fields.flag("byte_fallback", false);
  model.ignore_merges = fields.flag("ignore_merges", false);
  fields.done();
  return model;
}

std::vector<AddedToken> read_added(const Json& json, const BpeModel& model,
                                   const std::string& where) {
  std::vector<AddedToken> all;
  std::unordered_set<std::string> seen;
  const auto size = static_cast<TokenId>(model.ids.size());
  TokenId next = size;
  for (const Json& each : json) {
    TokenizerFields fields(each, where);
    AddedToken token;
    token.id = static_cast<TokenId>(fields.count("id"));
    token.content = fields.text("content");
    token.special = fields.flag("special", false);
    token.single_word = fields.flag("single_word", false);
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    token.normalized = fields.flag("normalized", !token.special);
    fields.done();
    if (token.content.empty()) fields.bad("content", "a non-empty token");
    if (!seen.insert(token.content).second) {
      throw DataError(str(where, ": the token ", quote(token.content), " is listed twice"));
    }
    // The tokenizers package assigns the ids itself and only warns if a file differs.
    const auto known = model.ids.find(token.content);
    const TokenId expected = known == model.ids.end() ? next : known->second;
    if (token.id != expected) {
      throw DataError(str(where, ": the token ", quote(token.content), " has id ", token.id,
                          known == model.ids.end()
                              ? ", but the next free id is "
                              : ", but its id in the vocabulary of the model is ",
                          expected));
    }
    if (token.id >= next) next = token.id + 1;
    all.push_back(std::move(token));
  }
  return all;
}

std::string fingerprint_of(const Json& json) {
  Sha256 hash;
  for (const char* key :
       {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model"}) {
    const auto found = json.find(key);
    hash.add(str(key, "="));
    if (found != json.end()) hash.add(found->dump());
    hash.add("\n");
  }
  return to_hex(hash.finish());
}

}  // namespace

TokenizerSpec parse_tokenizer(std::string_view text, const std::string& where) {
  const Json json = parse_strictly(text, kMaxNesting, where);
  TokenizerFields fields(json, where);
  if (const std::string version = fields.text("version", "1.0"); version != "1.0") {
    fields.bad("version", "\"1.0\"");
  }
  TokenizerSpec spec;
  // Libraries write these after any call that padded or truncated. They are settings of a call.
  for (const char* const key : {"truncation", "padding"}) {
    if (fields.get(key) == nullptr) continue;
    spec.notes.push_back(str(where, " has ", quote(key),
                             ", which is ignored: texts are encoded whole, without ", key));
  }
  spec.model =
      read_model(fields.need("model", "an object"), fields.where("model"), spec.missing_unknown);
  if (fields.get("added_tokens") != nullptr) {
    spec.added = read_added(fields.list("added_tokens"), spec.model, fields.where("added_tokens"));
  }
  if (const Json* it = fields.get("normalizer")) {
    read_normalizer(*it, fields.where("normalizer"), spec);
  }
  if (const Json* it = fields.get("pre_tokenizer")) {
    read_pre_tokenizer(*it, fields.where("pre_tokenizer"), spec);
  }
  if (const Json* it = fields.get("post_processor")) {
    read_post_processor(*it, fields.where("post_processor"), spec);
  }
  if (const Json* it = fields.get("decoder")) {
    spec.decoder.emplace();
    read_decoder(*it, fields.where("decoder"), spec);
  }
  fields.done();
  check_steps(spec, where);
  spec.fingerprint = fingerprint_of(json);
  return spec;
}

NamedTokens parse_named_tokens(std::string_view text, const std::string& where) {
  const Json json = parse_strictly(text, kMaxNesting, where);
  TokenizerFields fields(json, where);
  const auto named = [&](const std::string& key) -> std::string {
    const Json* token = fields.get(key);
    if (token == nullptr) return "";
    return token->is_object() ? TokenizerFields(*token, fields.where(key)).text("content")
                              : fields.text(key);
  };
  return {named("bos_token"), named("eos_token")};
}

NumberedTokens parse_numbered_tokens(std::string_view text, const std::string& where) {
  const Json json = parse_strictly(text, 64, where);
  TokenizerFields fields(json, where);
  const auto numbered = [&](const std::string& key) -> std::optional<TokenId> {
    const Json* token = fields.get(key);
    if (token != nullptr && token->is_array()) token = token->empty() ? nullptr : &(*token)[0];
    if (token == nullptr) return std::nullopt;
    return static_cast<TokenId>(fields.count_of(*token, key));
  };
  return {numbered("bos_token_id"), numbered("eos_token_id")};
}

}  // namespace tessera::data
