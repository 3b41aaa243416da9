#include "tessera/data/bpe_tokenizer.h"

#include <algorithm>
#include <mutex>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/utf8.h"
#include "tessera/data/tokenizer_added.h"
#include "tessera/data/tokenizer_decoder.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

// Calls piece(begin, end, matches) for matches and for the text between them.
template <typename Piece>
void each_match(const PreTokenizerStep& step, std::string_view text, PatternScratch& scratch,
                const Piece& piece) {
  if (step.kind == PreTokenizerStep::Kind::digits) {
    const std::uint8_t* classes = unicode().classes.data();
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      if ((classes[utf8_next(text, at)] & kDigit) == 0) continue;
      if (done < begin) piece(done, begin, false);
      piece(begin, at, true);
      done = at;
    }
    if (done < text.size()) piece(done, text.size(), false);
    return;
  }
  std::size_t done = 0;
  PatternMatch match;
  while (done < text.size() && step.pattern->find(text, done, match, scratch)) {
    if (done < match.begin) piece(done, match.begin, step.invert);
    piece(match.begin, match.end, !step.invert);
    done = match.end;
  }
  if (done < text.size()) piece(done, text.size(), step.invert);
}

// Calls word(begin, end) for the words that a split produces.
template <typename Word>
void each_word(const PreTokenizerStep& step, std::string_view text, PatternScratch& scratch,
               const Word& word) {
  std::size_t begin = 0, end = 0;  // pending word, which the next piece may extend
  bool last = false;               // the last piece was a match
  const auto flush = [&] {
    if (begin < end) word(begin, end);
    begin = end;
  };
  switch (step.behavior) {
    case SplitBehavior::isolated:
      each_match(step, text, scratch,
                 [&](std::size_t from, std::size_t to, bool) { word(from, to); });
      return;
    case SplitBehavior::removed:
      each_match(step, text, scratch, [&](std::size_t from, std::size_t to, bool matches) {
        if (!matches) word(from, to);
      });
      return;
    case SplitBehavior::contiguous:
      each_match(step, text, scratch, [&](std::size_t, std::size_t to, bool matches) {
        if (matches != last) flush();
        end = to;
        last = matches;
      });
      break;
    case SplitBehavior::merged_with_previous:
      each_match(step, text, scratch, [&](std::size_t, std::size_t to, bool matches) {
        if (!matches || last) flush();
        end = to;
        last = matches;
      });
      break;
    case SplitBehavior::merged_with_next:
      each_match(step, text, scratch, [&](std::size_t, std::size_t to, bool matches) {
        if (matches || !last) flush();
        end = to;
        last = matches;
      });
      break;
  }
  flush();
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerSpec spec, const std::string& name, std::optional<TokenId> end,
               std::optional<TokenId> begin)
      : spec_(std::move(spec)), name_(name), end_(end), begin_(begin), bpe_(spec_.model) {
    std::vector<std::string> texts;
    const auto put = [&](TokenId id, const std::string& text) {
      if (id >= texts.size())
        texts.resize(id + 1), exists_.resize(id + 1), special_.resize(id + 1),
            skipped_.resize(id + 1);
      texts[id] = text;
      exists_[id] = true;
    };
    for (const auto& [text, id] : spec_.model.ids) put(id, text);
    // Special tokens first: they win if two tokens are equal after normalization.
    Scratch scratch;
    for (const bool special : {true, false}) {
      for (const AddedToken& token : spec_.added) {
        if (token.special != special) continue;
        // Tokens matched in normalized text also decode to normalized text.
        std::string text = token.content;
        if (token.normalized) text = normalized(token.content, scratch);
        if (text.empty()) {
          throw DataError(str(name, ": the added token ", quote(token.content),
                              " is empty after normalization"));
        }
        (token.normalized ? normal_ : raw_).add(token, text);
        across_spaces_ |= token.rstrip || token.content.find(' ') != std::string::npos;
        put(token.id, text);
        special_[token.id] = token.special;
        // The tokenizers package skips special tokens by text, so one whose text changed is kept.
        skipped_[token.id] = token.special && text == token.content;
      }
    }
    vocab_ = static_cast<std::int64_t>(texts.size());
    decoder_.emplace(spec_, std::move(texts));
    for (const std::optional<TokenId>& id : {end_, begin_}) {
      if (id && (*id >= exists_.size() || !exists_[*id])) {
        throw DataError(str(name, ": the files next to it name token ", *id,
                            " as begin or end of a text, but there is no such token. They may be "
                            "from another model."));
      }
    }
    cut_ = mark_to_cut_before();
    spaces_marked_ = spaces_become(cut_);
  }

  std::string name() const override { return name_; }
  std::int64_t vocab() const override { return vocab_; }
  std::string fingerprint() const override { return spec_.fingerprint; }
  std::optional<TokenId> find(std::string_view token) const override {
    return find_token(spec_, token);
  }
  bool may_cut_at_space() const override {
    return !cut_.empty() && spaces_marked_ && !across_spaces_;
  }
  bool is_special(TokenId id) const override { return id < special_.size() && special_[id]; }
  std::optional<TokenId> end_of_text() const override { return end_; }
  std::optional<TokenId> begin_of_text() const override { return begin_; }
  std::vector<TokenId> before_text() const override { return spec_.before; }
  std::vector<std::string> notes() const override { return spec_.notes; }

  void encode(std::string_view text, std::vector<TokenId>& out,
              const EncodeOptions& options) const override {
    if (const std::size_t good = utf8_valid_until(text); good != text.size()) {
      throw DataError(str("the text to encode is not UTF-8 at byte ", good,
                          ". Pass it through clean_utf8() first."));
    }
    if (text.size() >= (std::uint64_t{1} << 31)) {
      throw DataError(str("got a text of ", text.size(),
                          " bytes to encode, must be less than 2 GiB. Split it into documents."));
    }
    const std::size_t before = out.size();
    std::unique_ptr<Scratch> scratch = borrow();
    scratch->pattern.begin_text(text.size());
    try {
      if (options.around) out.insert(out.end(), spec_.before.begin(), spec_.before.end());
      encode_with(*scratch, text, out, options);
      if (options.around) out.insert(out.end(), spec_.behind.begin(), spec_.behind.end());
    } catch (...) {
      out.resize(before);
      throw;
    }
    give_back(std::move(scratch));
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    std::vector<TokenId> kept;
    for (const TokenId id : ids) {
      if (id >= exists_.size() || !exists_[id]) {
        throw DataError(
            str("token ", id, " does not exist in ", name_, ", whose vocabulary is ", vocab_));
      }
      if (skip_special && !skipped_[id]) kept.push_back(id);
    }
    return decoder_->decode(skip_special ? std::span<const TokenId>(kept) : ids);
  }

 private:
  // Buffers of one encoding thread. Kept for later calls because they cache words.
  struct Scratch {
    PatternScratch pattern;
    Bpe::Scratch bpe;
    std::string normal, other;           // of normalized()
    std::vector<std::string> rewritten;  // one per step that changes the text
  };

  std::unique_ptr<Scratch> borrow() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (scratches_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(scratches_.back());
    scratches_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    scratches_.push_back(std::move(scratch));
  }

  [[noreturn]] void refuse_growth(std::size_t size, std::size_t of) const {
    throw DataError(str(name_, ": the normalizer makes ", size, " bytes or more of a text of ", of,
                        " bytes; must be at most ", most_bytes_of(of)));
  }

  // Returns the normalized text, stored in scratch.normal. `prepend`: apply Prepend steps.
  std::string_view normalized(std::string_view text, Scratch& scratch, bool prepend = true) const {
    using Kind = NormalizerStep::Kind;
    std::string& now = scratch.normal;
    now.assign(text);
    const std::size_t most = most_bytes_of(text.size());
    const auto check_size = [&](std::size_t size) {
      if (size > most) refuse_growth(size, text.size());
    };
    for (const NormalizerStep& step : spec_.normalizer) {
      switch (step.kind) {
        case Kind::nfc:
        case Kind::nfd:
          if (!surely_normal(now, step.kind == Kind::nfc)) {
            now = normalize(now, step.kind == Kind::nfc);
          }
          break;
        case Kind::prepend:
          if (prepend && !now.empty()) {
            check_size(now.size() + step.text.size());
            now.insert(0, step.text);
          }
          break;
        case Kind::replace: {
          std::string& next = scratch.other;
          next.clear();
          std::size_t done = 0;
          PatternMatch match;
          while (done < now.size() && step.pattern->find(now, done, match, scratch.pattern)) {
            check_size(next.size() + match.begin - done + step.text.size());
            next.append(now, done, match.begin - done).append(step.text);
            done = match.end;
          }
          check_size(next.size() + now.size() - done);
          next.append(now, done);
          now.swap(next);
          break;
        }
      }
    }
    return now;
  }

  void encode_with(Scratch& scratch, std::string_view text, std::vector<TokenId>& out,
                   const EncodeOptions& options) const {
    using Behind = EncodeOptions::Behind;
    scratch.rewritten.resize(spec_.pre_tokenizer.size());
    const auto token = [&](TokenId id) { out.push_back(id); };
    const auto section = [&](std::size_t begin, std::size_t end) {
      std::string_view part = text.substr(begin, end - begin);
      const Behind behind = begin == 0 ? options.behind : Behind::token;
      if (!spec_.normalizer.empty()) part = normalized(part, scratch, behind != Behind::text);
      const auto piece = [&](std::size_t from, std::size_t to) {
        words(scratch, part.substr(from, to - from), 0, from == 0 ? behind : Behind::token, out);
      };
      if (normal_.empty()) {
        if (!part.empty()) piece(0, part.size());
      } else {
        normal_.split(part, options.special, piece, token);
      }
    };
    if (raw_.empty()) {
      if (!text.empty()) section(0, text.size());
    } else {
      raw_.split(text, options.special, section, token);
    }
  }

  // Applies the pre-tokenizer from step `number` on and encodes the words. `behind` is that of the
  // whole text if `text` starts it, otherwise token.
  void words(Scratch& scratch, std::string_view text, std::size_t number,
             EncodeOptions::Behind behind, std::vector<TokenId>& out) const {
    using Kind = PreTokenizerStep::Kind;
    using Behind = EncodeOptions::Behind;
    if (number == spec_.pre_tokenizer.size()) return one_word(scratch, text, out);
    const PreTokenizerStep& step = spec_.pre_tokenizer[number];
    if (step.kind == Kind::byte_level) {
      if (step.prefix_space && behind != Behind::text && !text.starts_with(' ')) {
        std::string& with = scratch.rewritten[number];
        with.assign(1, ' ').append(text);
        text = with;
      }
      if (step.pattern == nullptr) return bpe_.encode(text, scratch.bpe, out);
      each_word(step, text, scratch.pattern, [&](std::size_t begin, std::size_t end) {
        bpe_.encode(text.substr(begin, end - begin), scratch.bpe, out);
      });
      return;
    }
    if (step.kind == Kind::metaspace) {
      using Prepend = PreTokenizerStep::Prepend;
      std::string& with = scratch.rewritten[number];
      with.clear();
      const bool has = text.starts_with(' ') || text.starts_with(step.replacement);
      if (!has && ((step.prepend == Prepend::always && behind != Behind::text) ||
                   (step.prepend == Prepend::first && behind == Behind::nothing))) {
        with = step.replacement;
      }
      std::size_t done = 0;
      for (std::size_t at = text.find(' '); at != std::string_view::npos;
           at = text.find(' ', done)) {
        with.append(text.substr(done, at - done)).append(step.replacement);
        done = at + 1;
      }
      with.append(text.substr(done));
      text = with;
      if (!step.cut) return words(scratch, text, number + 1, behind, out);
    }
    each_word(step, text, scratch.pattern, [&](std::size_t begin, std::size_t end) {
      words(scratch, text.substr(begin, end - begin), number + 1,
            begin == 0 ? behind : Behind::token, out);
    });
  }

  // Cuts before marks where that does not change the ids, so that words are short and hit the
  // cache.
  void one_word(Scratch& scratch, std::string_view text, std::vector<TokenId>& out) const {
    if (!cut_.empty()) {
      std::size_t done = 0;
      for (std::size_t at = text.find(cut_); at != std::string_view::npos;) {
        if (done < at) {
          bpe_.encode(text.substr(done, at - done), scratch.bpe, out);
          done = at;
        }
        while (text.substr(at, cut_.size()) == cut_) at += cut_.size();
        at = text.find(cut_, at);
      }
      text.remove_prefix(done);
    }
    bpe_.encode(text, scratch.bpe, out);
  }

  // Returns the mark that the file uses for spaces if texts may be cut before it, otherwise "".
  std::string mark_to_cut_before() const {
    std::string mark = "\xe2\x96\x81";
    for (const PreTokenizerStep& step : spec_.pre_tokenizer) {
      if (step.kind == PreTokenizerStep::Kind::metaspace) mark = step.replacement;
    }
    return may_cut_before(spec_.model, mark) ? mark : "";
  }

  // A file may have the mark in its tokens but keep spaces unchanged.
  bool spaces_become(const std::string& mark) const {
    Scratch scratch;
    const std::string_view text = normalized("a b", scratch, /*prepend=*/false);
    const bool later = std::any_of(spec_.pre_tokenizer.begin(), spec_.pre_tokenizer.end(),
                                   [](const PreTokenizerStep& step) {
                                     return step.kind == PreTokenizerStep::Kind::metaspace;
                                   });
    return text == str("a", mark, "b") || (later && text == "a b");
  }

  TokenizerSpec spec_;
  std::string name_;
  std::optional<TokenId> end_, begin_;
  Bpe bpe_;
  std::int64_t vocab_ = 0;
  std::vector<bool> exists_, special_, skipped_;
  std::optional<TokenDecoder> decoder_;
  AddedTokenFinder raw_, normal_;  // matched in the original and in the normalized text
  std::string cut_;
  bool spaces_marked_ = false;  // spaces are replaced by cut_
  bool across_spaces_ = false;  // an added token may contain a space or absorb the next one
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> scratches_;  // not in use by any thread
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerSpec spec, const std::string& name,
                                              std::optional<TokenId> end,
                                              std::optional<TokenId> begin) {
  return std::make_unique<BpeTokenizer>(std::move(spec), name, end, begin);
}

std::optional<TokenId> find_token(const TokenizerSpec& spec, std::string_view token) {
  for (const AddedToken& each : spec.added) {
    if (each.content == token) return each.id;
  }
  const auto found = spec.model.ids.find(std::string(token));
  if (found == spec.model.ids.end()) return std::nullopt;
  return found->second;
}

}  // namespace tessera::data
