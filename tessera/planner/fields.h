#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// [Note: run fields] One table has a row for each field of RunConfig that a user can set: its name
// (the flag, and the key in TOML, JSON and CSV files, where "_" may stand for "-"), its group, its
// help, its allowed values, and the commands that take it. Flags, files, --print-config, --help,
// --questions and --score are all made from it.
struct Field {
  // Kind of the value, for files and --help.
  enum class Kind : std::uint8_t { integer, number, flag, text, size };

  std::size_t index = 0;  // in the table; an alias has that of its field
  std::string group;
  std::string name;
  Kind kind = Kind::text;
  std::string help;
  std::function<void(RunConfig&, const Field&, std::string_view)> parse;
  std::function<std::string(const RunConfig&, const Field&)> print;
  // Bounds of numbers. None if equal. An integer of a plan is at least 1, because omitting it means
  // "choose"; 0 means that in a run. resolve() checks the upper bounds of a plan.
  double least = 0, most = 0;
  // A plan has these bounds too, because 0 has a meaning.
  bool bounded_in_plans = false;
  // A number may also be "auto", which is kAutomatic.
  bool automatic = false;
  std::string bound = {};  // reason for the upper bound, and what to do instead; for errors
  std::vector<std::string> choices = {};  // allowed words; empty: any
  unsigned commands = 3;                  // bits of Command
  std::string type = {};                  // of the value, for --help; empty: by its kind
  std::string planned = {};               // the default of a plan, in words
  bool free_in_plans = false;             // a plan takes other words than the choices too
  std::string formerly = {};              // an older name that is still accepted
  bool alias = false;                     // another spelling of a field; files do not contain it

  // Returns true if the command takes it.
  bool is(Command command) const { return (commands & static_cast<unsigned>(command)) != 0; }
  bool is_flag() const { return kind == Kind::flag; }
  bool is_number() const { return kind != Kind::flag && kind != Kind::text; }
  std::string type_name() const;                     // for --help
  std::string shown_default(Command command) const;  // for --help
};
// Returns the fields that a command takes, in the order of --help.
const std::vector<Field>& fields(Command command);
// Returns the field with this name; "_" may stand for "-". Throws UsageError with the nearest name.
const Field& find_field(Command command, std::string_view name);

// Reads the text of a flag or a file. Throws UsageError about this field.
void set(RunConfig& config, const Field& field, std::string_view text);
// Returns the text that set() reads, as --print-config writes it.
std::string get(const RunConfig& config, const Field& field);

}  // namespace tessera::planner
