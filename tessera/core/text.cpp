#include "tessera/core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <locale>
#include <sstream>

#include "tessera/core/portable_math.h"
#include "tessera/core/utf8.h"

namespace tessera {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

void append_escaped(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else if (byte < 0x20 || byte >= 0x7f) {
    out += "\\x" + hex(byte, 2);
  } else {
    out += c;
  }
}

// Returns true for characters that change how a terminal shows the text around them: Latin-1
// controls (U+0080 to U+009F), bidirectional marks (U+200E, U+200F, U+202A to U+202E, U+2066 to
// U+2069) and line separators (U+2028, U+2029).
bool is_terminal_control(std::string_view character) {
  if (character.size() == 2) {
    return character[0] == '\xc2' && static_cast<unsigned char>(character[1]) < 0xa0;
  }
  if (character.size() != 3 || character[0] != '\xe2') return false;
  const auto last = static_cast<unsigned char>(character[2]);
  if (character[1] == '\x80') {
    return last == 0x8e || last == 0x8f || (last >= 0xa8 && last <= 0xae);
  }
  return character[1] == '\x81' && last >= 0xa6 && last <= 0xa9;
}

std::string escape_controls(std::string_view text, bool lines) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Sequence sequence = utf8_sequence(text, at);
    const std::string_view character = text.substr(at, sequence.size);
    const bool multibyte = sequence.kind == Utf8Sequence::Kind::valid && sequence.size > 1;
    if (text[at] == '"' || text[at] == '\\' || (lines && (text[at] == '\n' || text[at] == '\t'))) {
      out += text[at];
    } else if (!multibyte || is_terminal_control(character)) {
      for (const char byte : character) append_escaped(out, byte);
    } else {
      out += character;
    }
    at += character.size();
  }
  return out;
}

std::string visible_text(std::string_view text, std::size_t longest, bool lines) {
  if (text.size() <= longest) return escape_controls(text, lines);
  // Cut at character boundaries.
  const auto inside = [&](std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  std::size_t head = longest * 3 / 4, tail = text.size() - longest / 4;
  for (int i = 0; i < 3 && head > 0 && inside(head); ++i) --head;
  for (int i = 0; i < 3 && inside(tail); ++i) ++tail;
  return str(escape_controls(text.substr(0, head), lines), "[... ", tail - head, " bytes ...]",
             escape_controls(text.substr(tail), lines));
}

}  // namespace

std::string visible(std::string_view text, std::size_t longest) {
  return visible_text(text, longest, false);
}

std::string visible_lines(std::string_view text, std::size_t longest) {
  return visible_text(text, longest, true);
}

std::string concatenate(const TextPart* parts, std::size_t count) {
  fmt::memory_buffer buffer;
  const auto append = [&](std::string_view text) {
    buffer.append(text.data(), text.data() + text.size());
  };
  for (const TextPart* part = parts; part != parts + count; ++part) {
    switch (part->kind_) {
      case TextPart::Kind::kText: append({part->text_.data, part->text_.size}); break;
      case TextPart::Kind::kCharacter: buffer.push_back(part->character_); break;
      case TextPart::Kind::kSigned: {
        const fmt::format_int digits(part->signed_);
        append({digits.data(), digits.size()});
        break;
      }
      case TextPart::Kind::kUnsigned: {
        const fmt::format_int digits(part->unsigned_);
        append({digits.data(), digits.size()});
        break;
      }
      case TextPart::Kind::kDouble:
        fmt::format_to(fmt::appender(buffer), "{:g}", part->double_);
        break;
      case TextPart::Kind::kOther: {
        std::ostringstream out;
        out.imbue(std::locale::classic());
        out << std::boolalpha;
        part->other_.write(out, part->other_.value);
        append(out.str());
        break;
      }
    }
  }
  return fmt::to_string(buffer);
}

std::string fixed(double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); }

std::string shortest(double value) {
  const std::string plain = fmt::format("{}", value);  // the digits, perhaps in another notation
  if (!std::isfinite(value)) return plain;
  const std::size_t mark = plain.find('e');
  int exponent = mark == std::string::npos ? 0 : std::stoi(plain.substr(mark + 1));
  int count = 0, zeros = 0;  // of significant digits; of zeros at their end
  bool fraction = false;
  for (const char c : std::string_view(plain).substr(0, mark)) {
    if (c == '.') fraction = true;
    if (c < '0' || c > '9') continue;
    if (fraction) --exponent;
    if (c != '0' || count > 0) ++count;
    zeros = c == '0' ? zeros + 1 : 0;
  }
  count -= std::min(zeros, count);
  exponent += zeros;  // now of the last significant digit
  const int least = count == 1 ? -3 : -(count + 3), most = count == 1 ? 4 : 5;
  if (exponent < least || exponent > most) return fmt::format("{:.{}e}", value, count - 1);
  return fmt::format("{:.{}f}", value, std::max(0, -exponent));
}

std::string hex(std::uint64_t value, int digits) { return fmt::format("{:0{}x}", value, digits); }

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string result;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) result += separator;
    result += parts[i];
  }
  return result;
}

void cut_list(std::vector<std::string>& parts, std::size_t most) {
  if (parts.size() <= most) return;
  const std::size_t more = parts.size() - most;
  parts.resize(most);
  parts.push_back(str("and ", more, " more"));
}

std::errc read_double(std::string_view text, double& value) {
  // "nan", "inf", and what strtod() accepts besides: a leading space or +, hexadecimal digits.
  if (text.empty() || text[0] == '+' ||
      text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) {
    return std::errc::invalid_argument;
  }
#if defined(__cpp_lib_to_chars)
  double read = 0;
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, read);
  if (problem != std::errc()) return problem;
  if (at != end) return std::errc::invalid_argument;
#else
  const std::string copy(text);
  char* end = nullptr;
  const double read = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() + copy.size()) return std::errc::invalid_argument;
  const std::string_view digits = text.substr(0, text.find_first_of("eE"));
  const bool is_zero = digits.find_first_of("123456789") == std::string_view::npos;
  if (std::isinf(read) || (read == 0 && !is_zero)) return std::errc::result_out_of_range;
#endif
  value = read;
  return {};
}

std::string plural(std::int64_t count, std::string_view noun) {
  return str(count, " ", noun, count == 1 ? "" : "s");
}

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string result = "\"";
  if (text.size() <= kLongest) {
    for (char c : text) append_escaped(result, c);
  } else {
    for (char c : text.substr(0, kLongest / 2)) append_escaped(result, c);
    result += "...";
    for (char c : text.substr(text.size() - kLongest / 4)) append_escaped(result, c);
  }
  return result + '"';
}

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: keeps three rows of the table, the third for transpositions.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string suggest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string typed = lower(word);
  // At most a third of the letters may differ. Leading dashes do not count.
  const std::size_t letters = typed.size() - std::min(typed.find_first_not_of('-'), typed.size());
  const int length = static_cast<int>(std::min<std::size_t>(letters, 1000));
  int limit = std::max(1, (length + 1) / 3);
  std::string best;
  for (const std::string& candidate : candidates) {
    const auto difference = static_cast<long>(candidate.size()) - static_cast<long>(typed.size());
    if (difference > limit || -difference > limit) continue;
    // Do not suggest one one-letter word for another.
    const int distance = edit_distance(typed, lower(candidate));
    if (distance > limit || distance >= static_cast<int>(std::max(typed.size(), candidate.size())))
      continue;
    best = candidate;
    limit = distance - 1;
    if (limit < 0) break;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = suggest(word, candidates);
  return near.empty() ? std::string() : "; did you mean " + near + "?";
}

}  // namespace tessera
