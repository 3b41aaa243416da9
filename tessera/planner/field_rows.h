#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/planner/fields.h"

// Builders of the table of fields and readers of their values; for fields.cpp and field_table.cpp.
namespace tessera::planner {

using Words = std::vector<std::string>;

// Readers of values for the table: each throws UsageError about the field.
void parse_value(const Field& field, std::string_view text, Command command, bool& value);
void parse_value(const Field& field, std::string_view text, Command command, int& value);
void parse_value(const Field& field, std::string_view text, Command command, std::int64_t& value);
void parse_value(const Field& field, std::string_view text, Command command, double& value);
void parse_value(const Field& field, std::string_view text, Command command, std::string& value);
void parse_value(const Field& field, std::string_view text, Command command, StateLayout& value);
// Returns a number as files contain it: 1e+15 as 1000000000000000, 0.001 unchanged.
std::string number_text(double value);

// One row; the calls after add() set its properties.
class Row {
 public:
  explicit Row(Field& field) : field_(field) {}
  Row& range(double least, double most) {
    field_.least = least;
    field_.most = most;
    return *this;
  }
  Row& automatic() {
    field_.automatic = true;
    return *this;
  }
  Row& because(const char* why) {
    field_.bound = why;
    return *this;
  }
  Row& words(Words choices) {
    field_.choices = std::move(choices);
    return *this;
  }
  Row& size() {
    field_.kind = Field::Kind::size;
    return *this;
  }
  // Another spelling of the row before, in another unit.
  Row& alias_of_previous() {
    field_.alias = true;
    field_.kind = Field::Kind::number;
    --field_.index;
    return *this;
  }
  // The word "auto" leaves it open.
  Row& or_auto() {
    field_.choices.insert(field_.choices.begin(), "auto");
    return *this;
  }
  Row& type(const char* name) {
    field_.type = name;
    return *this;
  }
  Row& formerly(const char* name) {
    field_.formerly = name;
    return *this;
  }
  Row& bounded_in_plans() {
    field_.bounded_in_plans = true;
    return *this;
  }
  Row& free_in_plans() {
    field_.free_in_plans = true;
    return *this;
  }
  Row& train() { return only(Command::train); }
  Row& plan_only(const char* shown = "") { return only(Command::plan).plan(shown); }
  Row& plan(const char* shown) {
    field_.planned = shown;
    return *this;
  }

 private:
  Row& only(Command command) {
    field_.commands = static_cast<unsigned>(command);
    return *this;
  }
  Field& field_;
};

template <typename T>
struct Optional : std::false_type {};
template <typename T>
struct Optional<std::optional<T>> : std::true_type {
  using Value = T;
};

// Reads text into a member of any type. "auto" is nullopt if the row allows it.
template <typename T>
void parse_member(const Field& field, std::string_view text, Command command, T& value) {
  if constexpr (NamedEnum<T>) {
    std::string word;
    parse_value(field, text, command, word);
    value = *find_named<T>(word);
  } else if constexpr (Optional<T>::value) {
    if (text == "auto" && !field.choices.empty() && field.choices.front() == "auto") {
      value.reset();
    } else {
      typename Optional<T>::Value inside{};
      parse_member(field, text, command, inside);
      value = inside;
    }
  } else {
    parse_value(field, text, command, value);
  }
}

template <typename T>
std::string member_text(const Field& field, const T& value) {
  if constexpr (NamedEnum<T>) {
    return std::string(name(value));
  } else if constexpr (Optional<T>::value) {
    return value ? member_text(field, *value) : field.is_flag() ? "false" : "auto";
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    return field.automatic && value == kAutomatic ? "auto" : number_text(value);
  } else if constexpr (std::is_same_v<T, StateLayout>) {
    return value.name;
  } else {
    return str(value);
  }
}

template <typename T>
Field::Kind kind_of() {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>) {
    return Field::Kind::flag;
  } else if constexpr (std::is_same_v<T, double>) {
    return Field::Kind::number;
  } else {
    return std::is_integral_v<T> ? Field::Kind::integer : Field::Kind::text;
  }
}

template <typename T>
Words words_of() {
  if constexpr (NamedEnum<T>) {
    return names_of<T>();
  } else if constexpr (Optional<T>::value && !std::is_same_v<T, std::optional<bool>>) {
    return names_of<typename Optional<T>::Value>();
  } else {
    return {};
  }
}

class Table {
 public:
  void group(const char* name) { group_ = name; }
  // `access` is a pointer to a member, or a function that returns a reference to one.
  template <typename Access>
  Row add(std::string name, Access access, std::string help) {
    using T = std::remove_cvref_t<std::invoke_result_t<Access, RunConfig&>>;
    Field& field = add_row(std::move(name), std::move(help));
    field.kind = kind_of<T>();
    field.choices = words_of<T>();
    field.parse = [access](RunConfig& config, const Field& self, std::string_view text) {
      parse_member(self, text, config.command, std::invoke(access, config));
    };
    field.print = [access](const RunConfig& config, const Field& self) {
      return member_text<T>(self, std::invoke(access, const_cast<RunConfig&>(config)));
    };
    return Row(field);
  }
  Row add_axis(Axis axis, std::string help) {
    Field& field = add_row(std::string(axis_flag(axis).substr(2)), std::move(help));
    field.kind = Field::Kind::integer;
    field.parse = [axis](RunConfig& config, const Field& self, std::string_view text) {
      int size = 0;
      parse_value(self, text, config.command, size);
      config.axes.set_given(axis, size);
    };
    field.print = [axis](const RunConfig& config, const Field&) {
      return str(config.axes.given(axis));
    };
    return Row(field);
  }
  // A field whose text has its own syntax, such as "25GB/s".
  Row add_text(std::string name, void (*parse)(RunConfig&, const Field&, std::string_view),
               std::string (*print)(const RunConfig&), std::string help) {
    Field& field = add_row(std::move(name), std::move(help));
    field.parse = parse;
    field.print = [print](const RunConfig& config, const Field&) { return print(config); };
    return Row(field);
  }
  std::vector<Field> take(Command command) {
    std::erase_if(fields_, [&](const Field& field) { return !field.is(command); });
    return std::move(fields_);
  }

 private:
  Field& add_row(std::string name, std::string help) {
    Field& field = fields_.emplace_back();
    field.index = fields_.size() - 1;
    field.group = group_;
    field.name = std::move(name);
    field.help = std::move(help);
    return field;
  }

  std::string group_;
  std::vector<Field> fields_;
};

// Adds the rows of sharding_fields.cpp.
void add_sharding(Table& table);

}  // namespace tessera::planner
