#include "tessera/planner/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/portable_math.h"
#include "tessera/core/run_options.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/field_rows.h"

namespace tessera::planner {
namespace {

[[noreturn]] void refuse(const Field& field, std::string_view text, const std::string& allowed) {
  throw UsageError(Flag(field.name), str("got ", quote(text), "; must be ", allowed));
}

// Returns the end of a message about an unknown word: what replaced it, or a similar word.
std::string instead_of(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view moved = why_removed(word);
  return moved.empty() ? did_you_mean(word, known) : str(". ", moved);
}

std::string bounds_of(const Field& field) {
  return str(number_text(field.least), " to ", number_text(field.most));
}

// Reads "12", "-1", "4,194,304" and "13B".
std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, value);
  if (problem == std::errc() && at == end) return value;
  try {
    return parse_count(text);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::int64_t parse_size(const Field& field, std::string_view text) {
  try {
    return parse_bytes(text);
  } catch (const UsageError& error) {
    throw UsageError(Flag(field.name), error.what());
  }
}

}  // namespace

std::string number_text(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e16;
  return whole ? std::to_string(static_cast<std::int64_t>(value)) : shortest(value);
}

void parse_value(const Field& field, std::string_view text, Command command, std::int64_t& value) {
  if (field.kind == Field::Kind::size) {
    value = parse_size(field, text);
    return;
  }
  // resolve() checks the upper bounds of a plan.
  const bool open = command == Command::plan && !field.bounded_in_plans;
  const std::string bounds = open ? "at least 1" : bounds_of(field);
  const std::optional<std::int64_t> read = whole_number(text);
  // 1e30 is an integer too, but not one that can be counted.
  if (!read) refuse(field, text, str("an integer, ", bounds, open ? " and below 9.2e18" : ""));
  const auto wide = static_cast<double>(*read);
  if (open ? *read < 1 : !(wide >= field.least && wide <= field.most)) {
    const bool much = !field.bound.empty() && !open && wide > field.most;
    refuse(field, text, much ? str(bounds, ": ", field.bound) : bounds);
  }
  value = *read;
}

void parse_value(const Field& field, std::string_view text, Command command, int& value) {
  std::int64_t wide = 0;
  parse_value(field, text, command, wide);
  if (wide > std::numeric_limits<int>::max()) {
    refuse(field, text, str("at most ", std::numeric_limits<int>::max()));
  }
  value = static_cast<int>(wide);
}

void parse_value(const Field& field, std::string_view text, Command, double& value) {
  if (field.automatic && text == "auto") {
    value = kAutomatic;
    return;
  }
  const std::string bounds = bounds_of(field) + (field.automatic ? ", or auto" : "");
  double read = 0;
  if (read_double(text, read) != std::errc()) {
    refuse(field, text, str("a number, ", bounds));
  }
  if (!(read >= field.least && read <= field.most)) refuse(field, text, bounds);
  value = read;
}

void parse_value(const Field& field, std::string_view text, Command, bool& value) {
  if (text != "true" && text != "1" && text != "false" && text != "0") {
    refuse(field, text, "true or false");
  }
  value = text == "true" || text == "1";
}

void parse_value(const Field& field, std::string_view text, Command command, std::string& value) {
  const auto& choices = field.choices;
  const bool any = choices.empty() || (field.free_in_plans && command == Command::plan);
  if (!any && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    refuse(field, text, "one of " + join(choices, ", ") + instead_of(text, choices));
  }
  value = text;
}

void parse_value(const Field& field, std::string_view text, Command command, StateLayout& value) {
  std::string checked;
  parse_value(field, text, command, checked);
  try {
    value = parse_state_layout(checked);
  } catch (const UsageError& error) {
    throw UsageError(Flag(field.name), error.what());
  }
}

std::string Field::type_name() const {
  if (!type.empty()) return type;
  if (!choices.empty() && !free_in_plans) return "{" + join(choices, ",") + "}";
  switch (kind) {
    case Kind::size: return "SIZE";
    case Kind::number: return "NUMBER";
    case Kind::text: return "TEXT";
    default: return "INT";
  }
}

std::string Field::shown_default(Command command) const {
  return command == Command::plan ? planned : get({}, *this);
}

const Field& find_field(Command command, std::string_view name) {
  static const auto index_of = [](Command of) {
    std::unordered_map<std::string, const Field*> map;
    for (const Field& field : fields(of)) {
      map[field.name] = &field;
      if (!field.formerly.empty()) map.try_emplace(field.formerly, &field);
    }
    return map;
  };
  static const auto train = index_of(Command::train), plan = index_of(Command::plan);
  const auto& index = command == Command::train ? train : plan;
  std::string key(name);
  std::replace(key.begin(), key.end(), '_', '-');
  const auto found = index.find(key);
  if (found != index.end()) return *found->second;
  std::vector<std::string> names;
  for (const Field& each : fields(command)) names.push_back(each.name);
  const bool removed = !why_removed(key).empty();  // --print-config of earlier versions wrote both
  throw UsageError(str(quote(name), " is not a setting of a ",
                       command == Command::train ? "run" : "plan", instead_of(key, names),
                       removed ? ". Delete the keys powersgd-rank and powersgd-warmup." : ""),
                   key.substr(0, 40));
}

void set(RunConfig& config, const Field& field, std::string_view text) {
  field.parse(config, field, text);
  config.given_.set(field.index);
}

std::string get(const RunConfig& config, const Field& field) { return field.print(config, field); }

void RunConfig::set(std::string_view key, std::string_view text) {
  planner::set(*this, find_field(command, key), text);
}

bool RunConfig::has(std::string_view key) const {
  return given_.test(find_field(command, key).index);
}

RunConfig RunConfig::for_plan() {
  static const StateLayout kPlanLayout = parse_state_layout("bf16");
  RunConfig config;
  config.command = Command::plan;
  config.model_name = "gpt2-xl";
  config.hardware_name = "h100";
  config.layout = kPlanLayout;
  config.micro_batch = 0;
  return config;
}

}  // namespace tessera::planner
