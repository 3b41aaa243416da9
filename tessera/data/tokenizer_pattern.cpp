#include "tessera/data/tokenizer_pattern.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/utf8.h"
#include "tessera/data/unicode.h"

#ifdef TESSERA_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace tessera::data {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

class LiteralPattern final : public Pattern {
 public:
  explicit LiteralPattern(std::string text) : text_(std::move(text)) {}
  bool find(std::string_view text, std::size_t from, PatternMatch& match,
            PatternScratch&) const override {
    const std::size_t at = text.find(text_, from);
    if (at == std::string_view::npos) return false;
    match = {at, at + text_.size()};
    return true;
  }

 private:
  std::string text_;
};

// Scans a text by character classes.
class KindScanner {
 public:
  explicit KindScanner(std::string_view text) : text_(text), classes_(unicode().classes.data()) {}

  // Returns the class of the character at `at` and advances it: letter, number, space or none (0).
  unsigned next(std::size_t& at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 0x80) return ++at, classes_[byte] & kKinds;
    return classes_[utf8_next(text_, at)] & kKinds;
  }
  // Returns the position after the characters of this class at `at`, possibly none.
  std::size_t skip(std::size_t at, unsigned kind) const {
    while (at < text_.size()) {
      std::size_t behind = at;
      if (next(behind) != kind) break;
      at = behind;
    }
    return at;
  }
  // Returns the position after the spaces, leaving the last one for the following text, if any.
  std::size_t skip_spaces(std::size_t begin) const {
    const std::size_t end = skip(begin, kSpace);
    if (end == text_.size()) return end;
    const std::size_t last = utf8_before(text_, end);
    return last == begin ? end : last;
  }
  // Returns the position after 's 't 're 've 'm 'll 'd at `at`, or `at`.
  std::size_t skip_ending(std::size_t at, bool caseless) const {
    if (text_[at] != '\'' || at + 1 == text_.size()) return at;
    const auto lower = [&](std::size_t i) {
      const char c = i < text_.size() ? text_[i] : '\0';
      return caseless && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = lower(at + 1), second = lower(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'l' && second == 'l') || ((first == 'r' || first == 'v') && second == 'e')) {
      return at + 3;
    }
    if (caseless && text_.substr(at + 1, 2) == "\xc5\xbf") return at + 3;  // U+017F, long s
    return at;
  }

 private:
  static constexpr unsigned kKinds = kLetter | kNumber | kSpace;
  std::string_view text_;
  const std::uint8_t* classes_;
};

class Gpt2Pattern final : public Pattern {
 public:
  bool find(std::string_view text, std::size_t from, PatternMatch& match,
            PatternScratch&) const override {
    if (from >= text.size()) return false;
    const KindScanner scan(text);
    match = {from, scan.skip_ending(from, false)};
    if (match.end != from) return true;
    std::size_t at = from;
    unsigned kind = scan.next(at);
    if (kind == kSpace) {
      std::size_t behind = at;
      if (text[from] == ' ' && at < text.size() && (kind = scan.next(behind)) != kSpace) {
        at = behind;
      } else {
        match.end = scan.skip_spaces(from);
        return true;
      }
    }
    match.end = scan.skip(at, kind);
    return true;
  }
};

// Patterns of Llama 3, with up to three digits together, and of Qwen 2, with one.
class Llama3Pattern final : public Pattern {
 public:
  explicit Llama3Pattern(int numbers) : numbers_(numbers) {}
  bool find(std::string_view text, std::size_t from, PatternMatch& match,
            PatternScratch&) const override {
    if (from >= text.size()) return false;
    const KindScanner scan(text);
    match = {from, scan.skip_ending(from, true)};
    if (match.end != from) return true;
    std::size_t at = from;
    const unsigned kind = scan.next(at);
    if (kind == kLetter) {
      match.end = scan.skip(at, kLetter);
      return true;
    }
    if (kind == kNumber) {
      match.end = at;
      for (int i = 1; i < numbers_ && at < text.size() && scan.next(at) == kNumber; ++i) {
        match.end = at;
      }
      return true;
    }
    std::size_t behind = at;
    const unsigned second = at < text.size() ? scan.next(behind) : unsigned{kSpace};
    if (second == kLetter && text[from] != '\r' && text[from] != '\n') {
      match.end = scan.skip(behind, kLetter);
      return true;
    }
    if (kind == 0 || (text[from] == ' ' && second == 0)) {
      match.end = scan.skip(at, 0);
      while (match.end < text.size() && (text[match.end] == '\r' || text[match.end] == '\n')) {
        ++match.end;
      }
      return true;
    }
    // Spaces up to the last line end among them, if any.
    const std::size_t end = scan.skip(at, kSpace);
    const std::size_t line = text.substr(from, end - from).find_last_of("\r\n");
    match.end = line == std::string_view::npos ? scan.skip_spaces(from) : from + line + 1;
    return true;
  }

 private:
  int numbers_;
};

}  // namespace

#ifdef TESSERA_HAVE_PCRE2

namespace {

// Far more than any tokenizer's pattern needs, but still fast.
constexpr std::uint32_t kMaxSteps = 10'000'000;
constexpr std::uint32_t kFirstSteps = 1'000;
constexpr std::size_t kFirstWindow = 256;  // bytes
constexpr std::size_t kMaxStack = 1 << 20;

struct PcreDeleter {
  void operator()(pcre2_code* it) const { pcre2_code_free(it); }
  void operator()(pcre2_match_data* it) const { pcre2_match_data_free(it); }
  void operator()(pcre2_match_context* it) const { pcre2_match_context_free(it); }
  void operator()(pcre2_jit_stack* it) const { pcre2_jit_stack_free(it); }
};
template <typename T>
using PcrePointer = std::unique_ptr<T, PcreDeleter>;

template <typename T>
T* pcre_made(T* made) {
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace

struct PatternScratch::State {
  PcrePointer<pcre2_match_context> context{pcre_made(pcre2_match_context_create(nullptr))};
  PcrePointer<pcre2_match_data> match{pcre_made(pcre2_match_data_create(1, nullptr))};
  PcrePointer<pcre2_jit_stack> stack{pcre2_jit_stack_create(32 << 10, kMaxStack, nullptr)};

  State() {
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

namespace {

class PcrePattern final : public Pattern {
 public:
  PcrePattern(const std::string& regex, const std::string& where) : regex_(regex), where_(where) {
    const std::string text = translate_pattern(regex, where);
    int error = 0;
    std::size_t at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &at, nullptr));
    if (code_ == nullptr) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(error, message, sizeof message);
      throw DataError(str(where, ": the pattern ", quote(regex),
                          " is rejected by PCRE2: ", reinterpret_cast<const char*>(message)));
    }
    std::uint32_t empty = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty != 0) {
      throw DataError(str(where, ": the pattern ", quote(regex),
                          " may match an empty text, which is not supported"));
    }
    // Matching also works without JIT, more slowly.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  }

  // PCRE2 does not report how far it looked. It therefore gets the next few hundred bytes first,
  // and requests more by a partial match or no match. Then it gets twice as many, and the bytes
  // examined count as work: [Note: work of patterns].
  bool find(std::string_view text, std::size_t from, PatternMatch& match,
            PatternScratch& scratch) const override {
    PatternScratch::State& state = scratch.state();
    std::size_t window = kFirstWindow;
    std::uint32_t steps = kFirstSteps;
    while (true) {
      std::size_t end = std::min(text.size(), from + window);
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
      const bool whole = end == text.size();
      pcre2_set_match_limit(state.context.get(), steps);
      const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), end, from,
                                 PCRE2_NO_UTF_CHECK | (whole ? 0 : PCRE2_PARTIAL_HARD),
                                 state.match.get(), state.context.get());
      if (rc >= 0) {
        const std::size_t* found = pcre2_get_ovector_pointer(state.match.get());
        match = {found[0], found[1]};
        return match.end > match.begin;
      }
      if (rc == PCRE2_ERROR_NOMATCH && whole) {
        spend(scratch, end - from, from);
        return false;
      }
      if (rc == PCRE2_ERROR_MATCHLIMIT && steps < kMaxSteps) {
        spend(scratch, steps, from);
        steps = std::min(kMaxSteps, steps * 8);
      } else if (!whole && (rc == PCRE2_ERROR_PARTIAL || rc == PCRE2_ERROR_NOMATCH)) {
        spend(scratch, end - from, from);
        window *= 2;
      } else {
        PCRE2_UCHAR message[256] = {};
        pcre2_get_error_message(rc, message, sizeof message);
        throw DataError(str(where_, ": the pattern ", quote(regex_),
                            " could not be matched at byte ", from,
                            " of a text: ", reinterpret_cast<const char*>(message)));
      }
    }
  }

 private:
  void spend(PatternScratch& scratch, std::uint64_t work, std::size_t at) const {
    if (scratch.spend(work)) return;
    throw DataError(
        str(where_, ": the pattern ", quote(regex_),
            " takes too long for this text: it was stopped at byte ", at,
            ", since each match scans much of the following text. Use shorter documents "
            "or a tokenizer with another pattern."));
  }

  std::string regex_, where_;
  PcrePointer<pcre2_code> code_;
};

std::unique_ptr<Pattern> general_pattern(const std::string& regex, const std::string& where) {
  return std::make_unique<PcrePattern>(regex, where);
}

}  // namespace

bool have_pcre2() { return true; }

#else

struct PatternScratch::State {};

namespace {

std::unique_ptr<Pattern> general_pattern(const std::string& regex, const std::string& where) {
  throw DataError(str(where, ": the pattern ", quote(regex),
                      " needs PCRE2, which this build does not have. Install it (Debian: "
                      "libpcre2-dev) and rebuild."));
}

}  // namespace

bool have_pcre2() { return false; }

#endif

namespace {

// A few seconds at most: PCRE2 scans some hundred million bytes per second.
std::uint64_t most_work(std::uint64_t bytes) { return (std::uint64_t{256} << 20) + 256 * bytes; }

}  // namespace

PatternScratch::PatternScratch() : left_(most_work(0)) {}
PatternScratch::~PatternScratch() = default;
PatternScratch::PatternScratch(PatternScratch&&) noexcept = default;
PatternScratch& PatternScratch::operator=(PatternScratch&&) noexcept = default;

void PatternScratch::begin_text(std::size_t bytes) { left_ = most_work(bytes); }

bool PatternScratch::spend(std::uint64_t work) {
  if (work > left_) return false;
  left_ -= work;
  return true;
}

PatternScratch::State& PatternScratch::state() {
  if (state_ == nullptr) state_ = std::make_unique<State>();
  return *state_;
}

std::unique_ptr<Pattern> regex_pattern(const std::string& regex, const std::string& where,
                                       bool plain) {
  if (!plain) {
    if (regex == kGpt2Pattern) return std::make_unique<Gpt2Pattern>();
    if (regex == kLlama3Pattern) return std::make_unique<Llama3Pattern>(3);
    if (regex == kQwen2Pattern) return std::make_unique<Llama3Pattern>(1);
  }
  return general_pattern(regex, where);
}

std::unique_ptr<Pattern> literal_pattern(std::string text) {
  return std::make_unique<LiteralPattern>(std::move(text));
}

}  // namespace tessera::data
