#include "tessera/cli/experiment_file.h"

#include <algorithm>
#include <charconv>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/planner/toml_text.h"

namespace tessera::cli {

void put(RunWords& words, const std::string& name, const std::string& value) {
  for (auto& [own, text] : words) {
    if (own == name) {
      text = value;
      return;
    }
  }
  words.emplace_back(name, value);
}

std::string value_of(const RunWords& words, std::string_view name, const std::string& otherwise) {
  for (const auto& [own, text] : words) {
    if (own == name) return text;
  }
  return otherwise;
}

BatchReference parse_batch(const std::string& text) {
  const auto number = [&](std::string_view digits) {
    std::int64_t value = 0;
    const auto [end, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (problem != std::errc() || end != digits.data() + digits.size() || value < 1 ||
        value > 1'000'000'000) {
      throw UsageError(str("micro-batch: got ", quote(text),
                           "; must be a number of at least 1, a row, or a row plus a number such "
                           "as R3+1"));
    }
    return value;
  };
  if (text.empty() || (text[0] >= '0' && text[0] <= '9') || text[0] == '-' || text[0] == '+') {
    return {"", number(text)};
  }
  const std::size_t plus = text.find('+');
  if (plus == std::string::npos) return {text, 0};
  return {text.substr(0, plus), number(std::string_view(text).substr(plus + 1))};
}

Experiment find_experiment(const std::string& name, const std::string& scale) {
  std::vector<std::string> names;
  for (const BuiltInExperiment& each : built_in_experiments()) {
    names.emplace_back(each.name);
    if (name != each.name) continue;
    Experiment found = parse_experiment(each.toml, str("experiment ", name), scale);
    found.name = name;
    return found;
  }
  if (name.find('/') == std::string::npos && !name.ends_with(".toml")) {
    throw UsageError(str(quote(name), " is not an experiment; must be ", join(names, ", "),
                         ", or a .toml file", did_you_mean(name, names)));
  }
  const std::string text = read_small_file(name, planner::kMaxToml, "a TOML file");
  Experiment found = parse_experiment(text, name, scale);
  found.name = name;
  return found;
}

}  // namespace tessera::cli
