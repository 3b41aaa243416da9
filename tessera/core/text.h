#pragma once

#include <cstdint>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Concatenates its arguments as `<<` writes them, always in the "C" locale, so that messages and
// files do not change with the user's settings: str("rank ", 3, " of ", 4).
template <typename... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::boolalpha;
  ((out << args), ...);
  return std::move(out).str();
}

// Puts `separator` between the parts: join({"a", "b"}, ", ") is "a, b".
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// A count with its noun: "1 bucket", "2 buckets".
std::string plural(std::int64_t count, std::string_view noun);

// The text in double quotes, with control characters, quotes and non-ASCII bytes escaped and a long
// text cut in the middle: safe to print in an error message whatever the user typed.
std::string quote(std::string_view text);

// How many insertions, deletions, replacements and swaps of neighbours turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

// The candidate that `word` most probably meant, or "" when none is near. Case is ignored, and the
// earlier candidate wins a tie.
std::string suggest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean X?" or "", to be appended to an error message.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera
