#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/question.h"

namespace tessera::planner {

// One setting of a question. The flags of `tessera plan`, the keys of --batch, the columns of
// --score and the help all come from one table of these.
struct Field {
  std::string name;   // as its flag: "micro-batch"; files may write "micro_batch"
  std::string group;  // of --help
  std::string help;
  std::string type;                  // of the value, for --help: INT, SIZE, NAME
  std::string shown_default;         // likewise
  std::vector<std::string> choices;  // empty: anything that parses
  bool flag = false;                 // true or false: --name, --no-name
  void (*apply)(Question&, const Catalogue&, std::string_view) = nullptr;
};
const std::vector<Field>& fields();

// Texts for some of the fields, in whatever order they came.
class Settings {
 public:
  // Throws UsageError, with the near name, for a key that is no field; "micro_batch" is
  // "micro-batch". A later value replaces an earlier one.
  void set(std::string_view key, std::string value);
  bool has(std::string_view key) const;

  // The question they ask, not settled yet; what they do not say has its default. Throws UsageError
  // that names the flag and the text for what cannot be read.
  Question question(const Catalogue& catalogue) const;

 private:
  std::vector<std::optional<std::string>> values_;  // in the order of fields()
};

}  // namespace tessera::planner
