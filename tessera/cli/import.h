#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/planner/fields.h"

namespace tessera::cli {

// Outcome of importing a key that did not simply become a setting.
enum class Fate : std::uint8_t {
  changed,     // became a setting with a slightly different meaning
  not_needed,  // is the default behavior, or is switched off
  missing,     // has no counterpart
  open,        // "auto", or depends on something that this command does not see
  unknown,     // is not a known key of that program
};
const char* name(Fate fate);

struct ImportNote {
  std::string key;
  Fate fate = Fate::unknown;
  std::string text;
};

// Settings of another program's run as settings of Tessera, with notes on the rest.
class Imported {
 public:
  // Sets a value, replacing an earlier one. `from` names its source, for errors and for a comment
  // in the TOML. Throws UsageError that starts with it if the value is invalid.
  void set(std::string_view setting, const std::string& text, const std::string& from);
  void set(std::string_view setting, double value, const std::string& from);  // exact
  void note(std::string key, Fate fate, std::string text) {
    notes_.push_back({std::move(key), fate, std::move(text)});
  }
  bool has(std::string_view setting) const;

  const planner::RunConfig& settings() const { return settings_; }
  const std::vector<ImportNote>& notes() const { return notes_; }
  bool complete() const;            // no key is missing or unknown
  std::optional<ModelShape> model;  // set if neither a name nor --layers, --hidden, --heads give it

  // Returns a file for --config with only the settings that were set.
  std::string toml() const;
  std::string json() const;
  std::string report() const;  // the notes, one per line

 private:
  planner::RunConfig settings_;
  std::vector<std::pair<std::string, std::string>> given_;  // setting, from
  std::vector<ImportNote> notes_;
};

// Elements of the largest bucket that is imported.
inline constexpr std::int64_t kLargestBucket = 25'000'000'000;

// Batch sizes, with micro-batch · accumulation · replicas = global batch; 0 is unknown. set_batch()
// derives the unknown ones. Throws UsageError if they contradict each other.
struct BatchSizes {
  std::int64_t global = 0, micro = 0, accumulation = 0, replicas = 0;
  std::string global_key, micro_key, accumulation_key;
};
void set_batch(Imported& out, BatchSizes sizes);

// `ranks`: number of ranks of the whole job; 0 if unknown.
Imported import_deepspeed(std::string_view text, const std::string& where, int ranks);
Imported import_megatron(const std::vector<std::string>& words, int ranks);

}  // namespace tessera::cli
