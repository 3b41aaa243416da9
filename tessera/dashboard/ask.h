#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"

namespace tessera::dashboard {

using Json = nlohmann::ordered_json;

// [Note: limits of a page] Bounds of the work of one request. Commands have no such bounds, since
// they use the caller's own time.
struct Limits {
  int ranks = 1 << 20;               // of a question
  std::int64_t slots = 1 << 16;      // ranks · micro-batches · chunks of a pipeline
  std::int64_t drawn = 1 << 14;      // most slots of a schedule that is drawn
  std::int64_t events = 20'000'000;  // estimated events of a simulation
  int context_ranks = 64;            // largest cp of a ring that is drawn
  int search_gpus = 1 << 16;
  // Configurations that a search may try. Its time depends on the number of divisors of the GPUs
  // and of the batch; 65,536 has few.
  std::int64_t search_ways = 150'000;
};

// Body of a request. A view takes the keys that it defines one by one; the remaining keys are
// settings of a planner question. Members throw UsageError for invalid values.
class Ask {
 public:
  explicit Ask(const std::string& body);

  bool has(std::string_view key) const;
  double number(const std::string& key, double otherwise, double least, double most);
  std::int64_t integer(const std::string& key, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most);
  bool flag(const std::string& key, bool otherwise);
  std::string word(const std::string& key, const std::string& otherwise,
                   const std::vector<std::string>& choices);
  // Returns a list of words or of any values; empty if the key is absent.
  std::vector<std::string> words(const std::string& key, const std::vector<std::string>& choices,
                                 std::size_t most);
  Json list(const std::string& key, std::size_t most);

  // Removes a key and returns its object as text; "" if it is absent. A text is returned unchanged.
  std::string object_text(const std::string& key);

  // Sets a default for a key that is not given.
  void otherwise(const std::string& key, const std::string& text);
  // Returns the keys that were not taken, as settings of a question.
  planner::RunConfig settings() const;
  // Returns the question of these settings, resolved. Throws UsageError if it exceeds the limits.
  planner::RunConfig question(const planner::Catalog& catalog, const Limits& limits) const;
  // Throws UsageError if keys remain. For views without a question.
  void nothing_else() const;
  // Returns the command that prints the same: "tessera plan --model gpt2-xl --dp 8".
  std::string command(const std::string& words, const std::set<std::string>& without = {}) const;

 private:
  const Json* take(const std::string& key);

  Json body_;
  std::set<std::string> taken_;
};

void check_limits(const planner::RunConfig& resolved, const Limits& limits);
// Throws UsageError, which ends with `rule`, if a replica has more forward passes in a step.
void check_passes(const planner::RunConfig& resolved, std::int64_t most, const std::string& rule);

// Quotes a word for a shell if necessary.
std::string shell_word(const std::string& text);
// Format numbers exactly, as commands accept them: 0.05, and 25GB/s.
std::string exact_word(double value);
std::string rate_word(double bytes_per_second);

}  // namespace tessera::dashboard
