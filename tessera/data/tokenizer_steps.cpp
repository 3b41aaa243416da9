#include "tessera/data/tokenizer_steps.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/core/utf8.h"
#include "tessera/data/tokenizer_fields.h"

namespace tessera::data {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxTokenizerSteps = 32;

// Calls `read` for the step, or for each step of a sequence.
template <typename Read>
void each_step(const Json& json, const std::string& where, const std::string& list,
               const Read& read, int depth = 0) {
  TokenizerFields fields(json, where);
  const std::string type = fields.text("type");
  if (type != "Sequence") {
    read(fields, type);
    fields.done();
    return;
  }
  const Json& steps = fields.list(list);
  if (depth > 4 || steps.size() > kMaxTokenizerSteps) {
    throw DataError(str(where, ": a sequence has too many steps"));
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    each_step(steps[i], str(where, "[", i, "]"), list, read, depth + 1);
  }
  fields.done();
}

[[noreturn]] void unknown_type(TokenizerFields& fields, std::string_view known) {
  fields.refuse("type", str("which is not supported; must be one of ", known));
}

std::shared_ptr<const Pattern> read_pattern(TokenizerFields& fields) {
  TokenizerFields pattern(fields.need("pattern", "an object"), fields.where("pattern"));
  std::shared_ptr<const Pattern> out;
  if (pattern.get("Regex") != nullptr) {
    out = regex_pattern(pattern.text("Regex"), pattern.where());
  } else {
    const std::string text = pattern.text("String");
    if (text.empty()) pattern.bad("String", "a non-empty string");
    out = literal_pattern(text);
  }
  pattern.done();
  return out;
}

// Reads a string of one character.
std::string read_character(TokenizerFields& fields, const std::string& key) {
  const std::string text = fields.text(key);
  if (text.empty() || utf8_length(text[0]) != text.size()) fields.bad(key, "one character");
  return text;
}

SplitBehavior read_behavior(TokenizerFields& fields) {
  static constexpr std::array<std::pair<const char*, SplitBehavior>, 5> known = {
      {{"Isolated", SplitBehavior::isolated},
       {"Removed", SplitBehavior::removed},
       {"Contiguous", SplitBehavior::contiguous},
       {"MergedWithPrevious", SplitBehavior::merged_with_previous},
       {"MergedWithNext", SplitBehavior::merged_with_next}}};
  const std::string text = fields.text("behavior");
  for (const auto& [name, behavior] : known) {
    if (text == name) return behavior;
  }
  fields.bad("behavior", "Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
}

// Reads the prefix setting of Metaspace, including the fields of older versions.
PreTokenizerStep::Prepend read_prepend(TokenizerFields& fields) {
  using Prepend = PreTokenizerStep::Prepend;
  const bool given = fields.get("prepend_scheme") != nullptr;
  const std::string text = fields.text("prepend_scheme", "always");
  const Prepend scheme = text == "always"  ? Prepend::always
                         : text == "first" ? Prepend::first
                                           : Prepend::never;
  if (scheme == Prepend::never && text != "never") {
    fields.bad("prepend_scheme", "always, first or never");
  }
  const bool space = fields.flag("add_prefix_space", scheme != Prepend::never);
  if (given && space != (scheme != Prepend::never)) {
    fields.bad("add_prefix_space", "consistent with prepend_scheme");
  }
  fields.ignore({"str_rep"});
  return space ? scheme : Prepend::never;
}

}  // namespace

void read_normalizer(const Json& json, const std::string& where, TokenizerSpec& spec) {
  each_step(json, where, "normalizers", [&](TokenizerFields& fields, const std::string& type) {
    using Kind = NormalizerStep::Kind;
    NormalizerStep step;
    if (type == "NFC") {
      step.kind = Kind::nfc;
    } else if (type == "NFD") {
      step.kind = Kind::nfd;
    } else if (type == "Prepend") {
      step.kind = Kind::prepend;
      step.text = fields.text("prepend");
    } else if (type == "Replace") {
      step.kind = Kind::replace;
      step.pattern = read_pattern(fields);
      step.text = fields.text("content");
    } else {
      unknown_type(fields, "NFC, NFD, Prepend, Replace or Sequence");
    }
    spec.normalizer.push_back(std::move(step));
  });
}

void read_pre_tokenizer(const Json& json, const std::string& where, TokenizerSpec& spec) {
  each_step(json, where, "pretokenizers", [&](TokenizerFields& fields, const std::string& type) {
    using Kind = PreTokenizerStep::Kind;
    PreTokenizerStep step;
    if (type == "Split") {
      step.kind = Kind::split;
      step.pattern = read_pattern(fields);
      step.behavior = read_behavior(fields);
      step.invert = fields.flag("invert", false);
    } else if (type == "ByteLevel") {
      step.kind = Kind::byte_level;
      step.prefix_space = fields.flag("add_prefix_space", true);
      if (fields.flag("use_regex", true)) {
        step.pattern = regex_pattern(kGpt2Pattern, fields.where());
      }
      fields.ignore({"trim_offsets"});
    } else if (type == "Metaspace") {
      step.kind = Kind::metaspace;
      step.behavior = SplitBehavior::merged_with_next;
      step.replacement = read_character(fields, "replacement");
      step.pattern = literal_pattern(step.replacement);
      step.prepend = read_prepend(fields);
      step.cut = fields.flag("split", true);
    } else if (type == "Digits") {
      step.kind = Kind::digits;
      step.behavior = fields.flag("individual_digits", false) ? SplitBehavior::isolated
                                                              : SplitBehavior::contiguous;
    } else {
      unknown_type(fields, "Split, ByteLevel, Metaspace, Digits or Sequence");
    }
    spec.pre_tokenizer.push_back(std::move(step));
  });
}

void read_post_processor(const Json& json, const std::string& where, TokenizerSpec& spec) {
  int templates = 0;
  each_step(json, where, "processors", [&](TokenizerFields& fields, const std::string& type) {
    if (type == "ByteLevel") {  // affects offsets only
      fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
      return;
    }
    if (++templates > 1) throw DataError(str(where, ": more than one step adds tokens"));
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      const auto id = [&](const char* key) {
        const Json& pair = fields.list(key);
        if (pair.size() != 2) fields.bad(key, "a token and its id");
        return static_cast<TokenId>(fields.count_of(pair[1], key));
      };
      spec.before.push_back(id("cls"));
      spec.behind.push_back(id("sep"));
      fields.ignore({"add_prefix_space", "trim_offsets"});
      return;
    }
    if (type != "TemplateProcessing") {
      unknown_type(fields,
                   "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or Sequence");
    }
    const Json& tokens = fields.need("special_tokens", "an object");
    TokenizerFields known(tokens, fields.where("special_tokens"));
    bool text = false;
    for (const Json& piece : fields.list("single")) {
      TokenizerFields part(piece, fields.where("single"));
      if (const Json* it = part.get("Sequence")) {
        TokenizerFields sequence(*it, part.where("Sequence"));
        if (sequence.text("id") != "A" || text) sequence.bad("id", "\"A\", once");
        sequence.ignore({"type_id"});
        sequence.done();
        text = true;
      } else {
        TokenizerFields special(part.need("SpecialToken", "a Sequence or a SpecialToken"),
                                part.where("SpecialToken"));
        const std::string name = special.text("id");
        TokenizerFields entry(known.need(name, "an entry for the token of the template"),
                              known.where(name));
        for (const Json& id : entry.list("ids")) {
          (text ? spec.behind : spec.before)
              .push_back(static_cast<TokenId>(entry.count_of(id, "ids")));
        }
        special.ignore({"type_id"});
        special.done();
      }
      part.done();
    }
    if (!text) fields.bad("single", "a template that contains the text");
    fields.ignore({"pair"});  // for pairs of texts, which are not encoded here
  });
}

void read_decoder(const Json& json, const std::string& where, TokenizerSpec& spec) {
  each_step(json, where, "decoders", [&](TokenizerFields& fields, const std::string& type) {
    using Kind = DecoderStep::Kind;
    DecoderStep step;
    if (type == "ByteLevel") {
      step.kind = Kind::byte_level;
      fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "Metaspace") {
      step.kind = Kind::metaspace;
      step.from = read_character(fields, "replacement");
      step.drop_first = read_prepend(fields) != PreTokenizerStep::Prepend::never;
      fields.ignore({"split"});
    } else if (type == "Replace") {
      step.kind = Kind::replace;
      TokenizerFields pattern(fields.need("pattern", "an object"), fields.where("pattern"));
      step.from = pattern.text("String");
      if (step.from.empty()) pattern.bad("String", "a non-empty string");
      pattern.done();
      step.to = fields.text("content");
    } else if (type == "ByteFallback") {
      step.kind = Kind::byte_fallback;
    } else if (type == "Fuse") {
      step.kind = Kind::fuse;
    } else if (type == "Strip") {
      step.kind = Kind::strip;
      step.from = read_character(fields, "content");
      step.start = fields.count("start");
      step.stop = fields.count("stop");
    } else {
      unknown_type(fields, "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip or Sequence");
    }
    if (!spec.decoder->empty() && spec.decoder->back().kind == Kind::byte_fallback &&
        step.kind != Kind::fuse) {
      fields.refuse("type", "after ByteFallback, where only Fuse is supported");
    }
    spec.decoder->push_back(std::move(step));
  });
}

void check_steps(TokenizerSpec& spec, const std::string& where) {
  using Kind = PreTokenizerStep::Kind;
  for (std::size_t i = 0; i < spec.pre_tokenizer.size(); ++i) {
    const PreTokenizerStep& step = spec.pre_tokenizer[i];
    if (step.kind == Kind::byte_level) {
      if (i + 1 != spec.pre_tokenizer.size()) {
        throw DataError(
            str(where, ", pre_tokenizer: ByteLevel is supported only as the last step"));
      }
      spec.model.byte_level = true;
    }
    if (step.kind == Kind::metaspace && step.prepend == PreTokenizerStep::Prepend::first) {
      bool sure = i == 0;
      for (const NormalizerStep& each : spec.normalizer) {
        sure &= each.kind != NormalizerStep::Kind::replace || !each.text.empty();
      }
      if (!sure) {
        throw DataError(
            str(where,
                ", pre_tokenizer: Metaspace with prepend_scheme \"first\" is supported only as "
                "the first step, without a normalizer that removes text"));
      }
    }
  }
  // Files of byte-level tokenizers may name an unknown token that is never needed.
  bool needed = !spec.missing_unknown.empty() && !spec.model.byte_level;
  for (const std::string& byte : byte_alphabet().of_byte) {
    needed |= !spec.missing_unknown.empty() && spec.model.ids.count(byte) == 0;
  }
  if (needed) {
    throw DataError(str(where, ", model: unk_token ", quote(spec.missing_unknown),
                        " is not in the vocabulary"));
  }
  std::size_t tokens = spec.model.ids.size() + spec.added.size();
  TokenId most = 0;
  for (const auto& [text, id] : spec.model.ids) most = std::max(most, id);
  for (const AddedToken& token : spec.added) most = std::max(most, token.id);
  if (tokens == 0) throw DataError(str(where, ", model: the vocabulary is empty"));
  if (most > 4 * tokens + 4096) {
    throw DataError(str(where, ": the largest id is ", most, " for ", tokens,
                        " tokens: the vocabulary has too many gaps"));
  }
  for (const std::vector<TokenId>* ids : {&spec.before, &spec.behind}) {
    for (const TokenId id : *ids) {
      if (id > most) {
        throw DataError(str(where, ", post_processor: token ", id, " is not in the vocabulary"));
      }
    }
  }
}

}  // namespace tessera::data
