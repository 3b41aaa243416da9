#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::data {

// What matching writes to. One for each thread.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(PatternScratch&&) noexcept;
  PatternScratch& operator=(PatternScratch&&) noexcept;

  // [Note: work of patterns] A pattern such as a+b|a looks at all that follows for every match, and
  // one with nested repetitions tries very many ways. So work is counted: bytes that a match looked
  // at beyond the first few hundred, and PCRE2's steps beyond the first thousand. A text may cost
  // so much in proportion to its size, and some more; then find() throws DataError. Begins the
  // count of a text of so many bytes.
  void begin_text(std::size_t bytes);
  // Counts work. False: there is none left.
  bool spend(std::uint64_t work);

  struct State;
  State& state();

 private:
  std::unique_ptr<State> state_;
  std::uint64_t left_;
};

struct PatternMatch {
  std::size_t begin = 0;
  std::size_t end = 0;  // behind `begin`: no pattern matches nothing
};

// A pattern that pieces of text are found with. The three that nearly all byte-level tokenizers
// have are matched by code of their own, which tests hold equal to PCRE2; others by PCRE2. [Note:
// patterns] The files are written for Oniguruma, whose language is not PCRE2's: `\s`, `\w`,
// `^` and (?i:ss) mean other things. What is the same in both is passed on, `\s` and its like are
// written out, and whatever else there is gets refused by name.
class Pattern {
 public:
  virtual ~Pattern() = default;
  // The first match at or behind `from`. False: none. Text and `from` are at whole characters.
  virtual bool find(std::string_view text, std::size_t from, PatternMatch& match,
                    PatternScratch& scratch) const = 0;
};

// The pattern of GPT-2, which ByteLevel has built in.
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

// Throws DataError for what cannot be matched just as the tokenizers package would; `where` names
// the place in the file. `plain`: never code of its own for a pattern that is known.
std::unique_ptr<Pattern> regex_pattern(const std::string& regex, const std::string& where,
                                       bool plain = false);
std::unique_ptr<Pattern> literal_pattern(std::string text);

// The pattern in PCRE2's language. Throws DataError: [Note: patterns].
std::string translate_pattern(std::string_view regex, const std::string& where);

// Whether patterns other than the known ones can be matched.
bool have_pcre2();

}  // namespace tessera::data
