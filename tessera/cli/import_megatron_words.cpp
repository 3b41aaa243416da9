#include "tessera/cli/import_megatron_words.h"

#include <charconv>

#include "tessera/cli/import_megatron_flags.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

const MegatronFlag* find_megatron_flag(const std::string& flag) {
  for (const MegatronFlag& each : kMegatronFlags) {
    if (flag == each.flag) return &each;
  }
  return nullptr;
}

bool is_long_flag(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

template <typename T>
T number_of(const std::string& flag, const std::string& text, const char* allowed) {
  T value{};
  const auto [at, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || at != text.data() + text.size()) {
    throw UsageError(str(flag, ": got ", quote(text), "; must be ", allowed));
  }
  return value;
}

}  // namespace

MegatronWords::MegatronWords(const std::vector<std::string>& words, Imported& out) {
  for (std::size_t i = 0; i < words.size();) i = take(words, i, out);
}

std::string MegatronWords::word(const std::string& flag) const {
  const auto found = values_.find(flag);
  return found == values_.end() ? std::string() : found->second;
}

double MegatronWords::real(const std::string& flag, double otherwise) const {
  return has(flag) ? number_of<double>(flag, word(flag), "a number") : otherwise;
}

std::int64_t MegatronWords::size(const std::string& flag) const {
  if (!has(flag)) return 0;
  const auto value = number_of<std::int64_t>(flag, word(flag), "an integer");
  if (value < 1 || value > 1'000'000'000'000) {
    throw UsageError(str(flag, ": got ", value, "; must be 1 to 1000000000000"));
  }
  return value;
}

// Parses the flag at `at` with its values. Returns the index after them.
std::size_t MegatronWords::take(const std::vector<std::string>& words, std::size_t at,
                                Imported& out) {
  std::string flag = words[at++];
  if (!is_long_flag(flag)) {
    throw UsageError(str(quote(flag), ": unexpected argument; must be a flag of Megatron-LM"));
  }
  std::vector<std::string> values;
  if (const std::size_t sign = flag.find('='); sign != std::string::npos) {
    values.push_back(flag.substr(sign + 1));
    flag.resize(sign);
  }
  if (flag == "--layernorm-epsilon") flag = "--norm-epsilon";  // older names
  const MegatronFlag* const row = find_megatron_flag(flag);
  if (row == nullptr) {
    while (at < words.size() && !is_long_flag(words[at])) ++at;
    std::vector<std::string> names;
    for (const MegatronFlag& each : kMegatronFlags) names.emplace_back(each.flag);
    const std::string shown = quote(flag);
    out.note(shown.substr(1, shown.size() - 2), Fate::unknown,
             "not a known flag of Megatron-LM" + did_you_mean(flag, names));
    return at;
  }
  const auto expected = static_cast<std::size_t>(row->values < 0 ? words.size() : row->values);
  while (values.size() < expected && at < words.size() && !is_long_flag(words[at])) {
    values.push_back(words[at++]);
  }
  if (row->values >= 0 && values.size() != expected) {
    throw UsageError(str(flag, ": got ", plural(static_cast<std::int64_t>(values.size()), "value"),
                         "; must be ", row->values));
  }
  if (*row->text != '\0') out.note(flag, row->fate, row->text);
  values_[flag] = values.empty() ? "true" : values.front();
  return at;
}

}  // namespace tessera::cli
