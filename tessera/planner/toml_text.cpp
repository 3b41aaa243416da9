#include "tessera/planner/toml_text.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::planner {
namespace {

// In a line. Each part of a key is a table within a table, and toml++ 3.3 frees them by recursion.
constexpr int kMostDots = 64;

}  // namespace

// toml++ 3.3 has undefined behaviour for some characters beyond ASCII where a value should stand;
// in texts and comments it reads them well. So it is enough to know where those are.
void check_toml_text(std::string_view text, const std::string& where) {
  if (static_cast<std::int64_t>(text.size()) > kMostToml) {
    throw UsageError(str(where, " has ", text.size(), " bytes; wanted at most ",
                         format_bytes(kMostToml, ByteUnits::kBinary)));
  }
  std::size_t line = 1, line_begin = 0, at = 0;
  int dots = 0;
  const auto refuse = [&](const std::string& problem) {
    // Bytes that continue a character of UTF-8 are not columns.
    const std::string_view before = text.substr(line_begin, at - line_begin);
    const auto columns = std::count_if(before.begin(), before.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    });
    throw UsageError(str(where, ", line ", line, ", column ", columns + 1, ": ", problem));
  };
  std::string_view until;  // what ends the text or comment that we are in
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    const char c = rest.front();
    std::size_t taken = 1;
    if (c == '\n') {
      if (until.size() == 1) until = {};  // a comment, or a text that was not closed
      ++line;
      line_begin = at + 1;
      dots = 0;
    } else if (!until.empty()) {
      if (c == '\\' && until.front() == '"' && rest.size() > 1 && rest[1] != '\n') {
        taken = 2;  // what is escaped ends nothing
      } else if (rest.starts_with(until)) {
        taken = until.size();
        // Up to two quotes more belong to a text that three of them end.
        while (taken >= 3 && taken < 5 && taken < rest.size() && rest[taken] == c) ++taken;
        until = {};
      }
    } else if (c == '"' || c == '\'') {
      until = rest.substr(0, rest.starts_with("\"\"\"") || rest.starts_with("'''") ? 3 : 1);
      taken = until.size();
    } else if (c == '#') {
      until = "\n";
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      refuse("got a character that is not ASCII outside a text; wanted plain ASCII there");
    } else if (c == '.' && ++dots > kMostDots) {
      refuse(str("got a key of more than ", kMostDots, " parts; wanted fewer"));
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

}  // namespace tessera::planner
