#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::data {

// Buffers of Pattern::find(), one per thread.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(PatternScratch&&) noexcept;
  PatternScratch& operator=(PatternScratch&&) noexcept;

  // [Note: work of patterns] A pattern such as a+b|a scans all following text for every match, and
  // nested repetitions can try very many alternatives. Work is therefore counted: bytes that a
  // match examined beyond the first few hundred, and PCRE2's steps beyond the first thousand. The
  // limit grows with the size of the text; beyond it find() throws DataError. Resets the count for
  // a text of `bytes` bytes.
  void begin_text(std::size_t bytes);
  // Counts work. Returns false if the limit is exceeded.
  bool spend(std::uint64_t work);

  struct State;
  State& state();

 private:
  std::unique_ptr<State> state_;
  std::uint64_t left_;
};

// Match of a pattern.
struct PatternMatch {
  std::size_t begin = 0;
  std::size_t end = 0;  // after `begin`: matches are never empty
};

// Pattern that splits text. The three that nearly all byte-level tokenizers use have their own
// code, which tests compare with PCRE2; others are matched by PCRE2. [Note: patterns] The files are
// written for Oniguruma, whose language differs from PCRE2's: `\s`, `\w`, `^` and (?i:ss) mean
// other things. Syntax with equal meaning is passed on, `\s` and similar classes are written out,
// and everything else is rejected by name.
class Pattern {
 public:
  virtual ~Pattern() = default;
  // Finds the first match at or after `from`. Returns false if there is none. `from` must be at a
  // character boundary.
  virtual bool find(std::string_view text, std::size_t from, PatternMatch& match,
                    PatternScratch& scratch) const = 0;
};

// Pattern of GPT-2, which is built into ByteLevel.
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

// Throws DataError if the pattern cannot be matched exactly as in the tokenizers package; `where`
// names its location. `plain`: use PCRE2 even for the patterns with their own code.
std::unique_ptr<Pattern> regex_pattern(const std::string& regex, const std::string& where,
                                       bool plain = false);
std::unique_ptr<Pattern> literal_pattern(std::string text);

// Returns the pattern in PCRE2's language. Throws DataError: [Note: patterns].
std::string translate_pattern(std::string_view regex, const std::string& where);

// Returns true if the build has PCRE2, which other patterns need.
bool have_pcre2();

}  // namespace tessera::data
