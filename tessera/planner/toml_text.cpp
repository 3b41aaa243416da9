#include "tessera/planner/toml_text.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::planner {
namespace {

// Limit per line. Each part of a key is a nested table, and toml++ 3.3 frees them recursively.
constexpr int kMaxDots = 64;

// A TOML float requires a decimal point or an exponent.
std::string toml_value(const RunConfig& settings, const Field& field) {
  std::string text = get(settings, field);
  if (field.kind == Field::Kind::text || (field.automatic && text == "auto")) {
    return toml_string(text);
  }
  if (field.kind == Field::Kind::number && text.find_first_of(".eE") == std::string::npos) {
    text += ".0";
  }
  return text;
}

std::string table_name(std::string group) {
  std::transform(group.begin(), group.end(), group.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return group;
}

}  // namespace

// toml++ 3.3 has undefined behavior for some non-ASCII characters in place of a value, but reads
// them correctly in strings and comments. This scan therefore only tracks strings and comments.
void check_toml_text(std::string_view text, const std::string& where) {
  if (static_cast<std::int64_t>(text.size()) > kMaxToml) {
    throw UsageError(str(where, " has ", text.size(), " bytes; must have at most ",
                         format_bytes(kMaxToml, ByteUnits::kBinary)));
  }
  std::size_t line = 1, line_begin = 0, at = 0;
  int dots = 0;
  const auto refuse = [&](const std::string& problem) {
    // Continuation bytes of UTF-8 are not columns.
    const std::string_view before = text.substr(line_begin, at - line_begin);
    const auto columns = std::count_if(before.begin(), before.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    });
    throw UsageError(str(where, ", line ", line, ", column ", columns + 1, ": ", problem));
  };
  std::string_view until;  // terminator of the current string or comment
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    const char c = rest.front();
    std::size_t taken = 1;
    if (c == '\n') {
      if (until.size() == 1) until = {};  // a comment, or an unterminated string
      ++line;
      line_begin = at + 1;
      dots = 0;
    } else if (!until.empty()) {
      if (c == '\\' && until.front() == '"' && rest.size() > 1 && rest[1] != '\n') {
        taken = 2;  // an escaped character does not terminate
      } else if (rest.starts_with(until)) {
        taken = until.size();
        // A string that ends with three quotes may contain up to two more before them.
        while (taken >= 3 && taken < 5 && taken < rest.size() && rest[taken] == c) ++taken;
        until = {};
      }
    } else if (c == '"' || c == '\'') {
      until = rest.substr(0, rest.starts_with("\"\"\"") || rest.starts_with("'''") ? 3 : 1);
      taken = until.size();
    } else if (c == '#') {
      until = "\n";
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      refuse("character is not ASCII; only strings and comments may contain others");
    } else if (c == '.' && ++dots > kMaxDots) {
      refuse(str("a key must have at most ", kMaxDots, " parts"));
    }
    at += taken;
  }
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u" + hex(byte, 4);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string settings_toml(const RunConfig& settings, const std::vector<Field>& fields,
                          const LineNote& note) {
  std::string text, group;
  for (const Field& field : fields) {
    const std::optional<std::string> behind = note(field);
    if (!behind || field.alias) continue;
    if (field.group != group) {
      group = field.group;
      text += str(text.empty() ? "" : "\n", "[", table_name(group), "]\n");
    }
    text += str(field.name, " = ", toml_value(settings, field), *behind, "\n");
  }
  return text;
}

}  // namespace tessera::planner
