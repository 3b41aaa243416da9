// Translation of Oniguruma's patterns to PCRE2's: [Note: patterns].

#include <array>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/utf8.h"
#include "tessera/data/tokenizer_pattern.h"

namespace tessera::data {
namespace {

// For use inside brackets. PCRE2's own \s also includes U+180E, and its \S excludes it.
constexpr const char* kSpaceSet =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr const char* kNoSpaceSet =
    "\\x{00}-\\x{08}\\x{0e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

class Translator {
 public:
  Translator(std::string_view regex, const std::string& where) : regex_(regex), where_(where) {}

  std::string run() {
    alternatives(0, false);
    if (at_ < regex_.size()) refuse("an unmatched )", 1);
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::size_t size = 0) const {
    throw DataError(str(where_, ": the pattern has ", what,
                        size == 0 ? "" : str(" (", quote(regex_.substr(at_, size)), ")"),
                        " at byte ", at_, ", which is not supported: ", quote(regex_)));
  }
  bool more() const { return at_ < regex_.size(); }
  bool sees(std::string_view text) const { return regex_.substr(at_, text.size()) == text; }
  bool takes(std::string_view text) {
    if (!sees(text)) return false;
    at_ += text.size();
    return true;
  }

  static std::string code(char32_t c) { return str("\\x{", hex(c, 2), "}"); }

  void alternatives(int depth, bool caseless) {
    if (depth > 40) refuse("groups nested too deeply");
    std::string letters;  // adjacent letters in a caseless group
    while (more() && !sees(")")) {
      if (takes("|")) {
        out_ += '|';
        letters.clear();
        continue;
      }
      if (sees("(")) {
        group(depth, caseless);
        letters.clear();
      } else if (sees("[")) {
        if (caseless) refuse("a set of characters in a caseless group", 1);
        set();
      } else if (sees("\\")) {
        escape(false, caseless);
        letters.clear();
      } else if (takes(".")) {
        out_ += "[^\\x{0a}]";
      } else if (regex_.find_first_of("^$*+?{}]", at_) == at_) {
        refuse(std::string_view("^$").find(regex_[at_]) != std::string_view::npos
                   ? "an anchor"
                   : "a special character without a \\ or an item to repeat",
               1);
      } else {
        literal(caseless, letters);
      }
      if (quantifier()) letters.clear();
    }
  }

  void literal(bool caseless, std::string& letters) {
    const char32_t c = utf8_next(regex_, at_);
    if (caseless) {
      if (c >= 0x80) refuse("a caseless character outside ASCII");
      letters += static_cast<char>(c | 0x20);
      // Letter pairs that Oniguruma matches with a single character if case is ignored.
      static const std::set<std::string, std::less<>> joined = {"ss", "st", "ff", "fi", "fl"};
      if (letters.size() > 1 && joined.count(letters.substr(letters.size() - 2)) != 0) {
        refuse("caseless letters that may match a single character");
      }
    }
    out_ += code(c);
  }

  void group(int depth, bool caseless) {
    struct Opening {
      const char *from, *to;
    };
    static constexpr std::array<Opening, 8> openings = {{{"(?:", "(?:"},
                                                         {"(?i:", "(?i:"},
                                                         {"(?=", "(?="},
                                                         {"(?!", "(?!"},
                                                         {"(?<=", "(?<="},
                                                         {"(?<!", "(?<!"},
                                                         {"(?>", "(?>"},
                                                         {"(", "(?:"}}};
    for (const Opening& opening : openings) {
      if (!sees(opening.from)) continue;
      if (opening.from == std::string_view("(") && (sees("(?") || sees("(*"))) break;
      at_ += std::string_view(opening.from).size();
      out_ += opening.to;
      alternatives(depth + 1, caseless || opening.from == std::string_view("(?i:"));
      if (!takes(")")) refuse("a group that is not closed");
      out_ += ')';
      return;
    }
    refuse("a group of this kind", 4);
  }

  // Returns true if there was one.
  bool quantifier() {
    bool counted = false, exact = false;
    if (more() && std::string_view("*+?").find(regex_[at_]) != std::string_view::npos) {
      out_ += regex_[at_++];
    } else if (sees("{")) {
      counted = true;
      const std::size_t end = regex_.find('}', at_);
      if (end == std::string_view::npos) refuse("a { that is not closed", 1);
      const std::string_view inside = regex_.substr(at_ + 1, end - at_ - 1);
      const std::size_t digits = inside.find_first_not_of("0123456789");
      exact = digits == std::string_view::npos;
      if (inside.empty() || digits == 0 || inside.size() > 9 ||
          (!exact && (inside[digits] != ',' || inside.find_first_not_of("0123456789", digits + 1) !=
                                                   std::string_view::npos))) {
        refuse("a count of this kind", end + 1 - at_);
      }
      out_ += regex_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    } else {
      return false;
    }
    if (counted && (sees("+") || (exact && sees("?")))) {
      refuse("a count with a different meaning in Oniguruma", 1);
    }
    if (sees("?") || sees("+")) out_ += regex_[at_++];
    if (more() && std::string_view("*+?{").find(regex_[at_]) != std::string_view::npos) {
      refuse("a repetition of a repetition", 1);
    }
    return true;
  }

  // Reads a \ and what follows. Returns the character, or kSet if it is a class.
  static constexpr char32_t kSet = 0xffffffff;
  char32_t escape(bool in_set, bool caseless) {
    const std::size_t begin = at_++;
    if (!more()) refuse("a \\ at its end");
    const char kind = regex_[at_];
    const auto bracketed = [&](const std::string& inside) {
      if (caseless) refuse("a character class in a caseless group");
      out_ += in_set ? inside : str("[", inside, "]");
      ++at_;
      return kSet;
    };
    switch (kind) {
      case 's': return bracketed(kSpaceSet);
      case 'S': return bracketed(kNoSpaceSet);
      case 'd': return bracketed("\\p{Nd}");
      case 'D': return bracketed("\\P{Nd}");
      case 'p':
      case 'P': property(caseless); return kSet;
      case 'r': return character(U'\r', 1, in_set);
      case 'n': return character(U'\n', 1, in_set);
      case 't': return character(U'\t', 1, in_set);
      case 'f': return character(U'\f', 1, in_set);
      case 'v': return character(U'\v', 1, in_set);
      case 'u': return numbered(1, 4, in_set);
      case 'x':
        if (regex_.substr(at_, 2) == "x{") {
          const std::size_t end = regex_.find('}', at_);
          if (end == std::string_view::npos || end - at_ > 8) refuse("a \\x{ without its end");
          const char32_t c = numbered(2, end - at_ - 2, in_set);
          ++at_;
          return c;
        }
        return numbered(1, 2, in_set, 0x7f);
      default: break;
    }
    const auto byte = static_cast<unsigned char>(kind);
    const bool word =
        (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
    if (word || byte <= ' ' || byte >= 0x7f) {
      at_ = begin;
      refuse("an escape", 2);
    }
    return character(static_cast<char32_t>(byte), 1, in_set);
  }

  char32_t character(char32_t c, std::size_t size, bool in_set) {
    at_ += size;
    if (!in_set) out_ += code(c);
    return c;
  }

  char32_t numbered(std::size_t skip, std::size_t digits, bool in_set, char32_t most = 0x10ffff) {
    const std::string_view text = regex_.substr(std::min(at_ + skip, regex_.size()), digits);
    char32_t c = 0;
    for (const char digit : text) {
      const std::size_t value = std::string_view("0123456789abcdef").find(digit | 0x20);
      if (value == std::string_view::npos || (digit != (digit | 0x20) && value < 10)) {
        refuse("an invalid character number");
      }
      c = c * 16 + static_cast<char32_t>(value);
    }
    if (text.size() != digits || digits == 0 || c > most || (c >= 0xd800 && c < 0xe000)) {
      refuse("an invalid character number");
    }
    return character(c, skip + digits, in_set);
  }

  void property(bool caseless) {
    if (caseless) refuse("a character class in a caseless group", 1);
    static const std::set<std::string, std::less<>> categories = {
        "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
        "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
        "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
    static const std::set<std::string, std::less<>> scripts = {
        "Arabic",   "Bengali",  "Cyrillic", "Devanagari", "Greek",  "Han",   "Hangul",
        "Hebrew",   "Hiragana", "Katakana", "Latin",      "Thai",   "Tamil", "Armenian",
        "Georgian", "Khmer",    "Lao",      "Mongolian",  "Myanmar"};
    const std::size_t end = regex_.find('}', at_);
    const std::string_view name = regex_.substr(at_ + 1, 1) == "{" && end != std::string_view::npos
                                      ? regex_.substr(at_ + 2, end - at_ - 2)
                                      : std::string_view();
    const bool category = categories.count(name) != 0;
    if (!category && scripts.count(name) == 0) refuse("an unknown character class", 12);
    out_ += str("\\", regex_[at_], category ? "{" : "{sc:", name, "}");
    at_ = end + 1;
  }

  void set() {
    ++at_;
    out_ += takes("^") ? "[^" : "[";
    if (sees("]")) refuse("an empty set", 1);
    while (!takes("]")) {
      if (!more()) refuse("a set that is not closed");
      const char32_t first = set_member();
      if (first == kSet) {
        if (sees("-") && !sees("-]")) refuse("a range that starts with a class", 2);
        continue;
      }
      out_ += code(first);
      if (sees("-") && !sees("-]")) {
        ++at_;
        if (!more()) refuse("a set that is not closed");
        const char32_t last = set_member();
        if (last == kSet || last < first) refuse("a range in descending order");
        out_ += str("-", code(last));
        if (sees("-") && !sees("-]")) refuse("a range of a range", 2);
      }
    }
    out_ += ']';
  }

  char32_t set_member() {
    if (sees("[") || sees("&&")) refuse("a set in a set", 2);
    if (sees("\\")) return escape(true, false);
    return utf8_next(regex_, at_);
  }

  std::string_view regex_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_pattern(std::string_view regex, const std::string& where) {
  return Translator(regex, where).run();
}

}  // namespace tessera::data
