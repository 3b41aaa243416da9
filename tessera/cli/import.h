#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/planner/settings.h"

namespace tessera::cli {

// What became of a key that gave no setting, or not just that.
enum class Fate : std::uint8_t {
  changed,     // taken, but it means something a little different here
  not_needed,  // happens anyway, or is switched off
  missing,     // there is no counterpart
  open,        // "auto", or left to something that this command does not see
  unknown,     // no key of that program as far as is known here
};
const char* name(Fate fate);

struct ImportNote {
  std::string key;
  Fate fate = Fate::unknown;
  std::string text;
};

// The settings of another program's run in our words, and what they do not say.
class Imported {
 public:
  // `from` is what it follows from, for errors and for the comment behind it. Throws UsageError
  // that begins with it if the setting cannot have that value. A later value replaces an earlier.
  void set(std::string_view setting, const std::string& text, const std::string& from);
  void set(std::string_view setting, double value, const std::string& from);  // to the bit
  void note(std::string key, Fate fate, std::string text) {
    notes_.push_back({std::move(key), fate, std::move(text)});
  }
  bool has(std::string_view setting) const;

  const planner::RunSettings& settings() const { return settings_; }
  const std::vector<ImportNote>& notes() const { return notes_; }
  bool complete() const;            // nothing is missing or unknown
  std::optional<ModelShape> model;  // one that has no name and whose sizes alone do not say it

  // A file for --config, with the settings that were given and nothing else.
  std::string toml() const;
  std::string json() const;
  std::string report() const;  // the notes, a line each

 private:
  planner::RunSettings settings_;
  std::vector<std::pair<std::string, std::string>> given_;  // setting, from
  std::vector<ImportNote> notes_;
};

// micro-batch · accumulation · replicas = global batch: from those that are known (not 0) follows
// the rest, and what contradicts is refused with the numbers.
struct BatchSizes {
  std::int64_t global = 0, micro = 0, accumulation = 0, replicas = 0;
  std::string global_key, micro_key, accumulation_key;
};
void set_batch(Imported& out, BatchSizes sizes);

// `ranks`: of the whole job, 0 if nobody said so.
Imported import_deepspeed(std::string_view text, const std::string& where, int ranks);
Imported import_megatron(const std::vector<std::string>& words, int ranks);

}  // namespace tessera::cli
