#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/planner/settings.h"

namespace tessera::dashboard {

using Json = nlohmann::ordered_json;

// [Note: limits of a page] What one request may make the server compute. A command has no such
// bounds: it is the caller's own time.
struct Limits {
  int ranks = 1 << 20;               // of a question
  std::int64_t slots = 1 << 16;      // ranks · micro-batches · chunks of a pipeline
  std::int64_t drawn = 1 << 14;      // of them in a schedule that is drawn
  std::int64_t events = 20'000'000;  // about what a simulation may handle
  int search_gpus = 1 << 16;
  // What a search may try. The time goes with the divisors of the GPUs and of the batch, of which
  // 65,536 has few.
  std::int64_t search_ways = 150'000;
};

// The body of a request: numbers and words that the view itself knows are taken out one by one, and
// the rest are settings of a question. Throws UsageError for what is not as it should be.
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
  // A list of words or of numbers; empty if it is not there.
  std::vector<std::string> words(const std::string& key, const std::vector<std::string>& choices,
                                 std::size_t most);
  Json list(const std::string& key, std::size_t most);

  // Sets what is not given.
  void otherwise(const std::string& key, const std::string& text);
  // What was not taken: settings of a question.
  planner::Settings settings() const;
  // The question they ask, settled and within the limits.
  planner::Question question(const planner::Catalogue& catalogue, const Limits& limits) const;
  // For views without a question.
  void nothing_else() const;
  // "tessera plan --model gpt2-xl --dp 8": the command that prints the same.
  std::string command(const std::string& words, const std::set<std::string>& without = {}) const;

 private:
  const Json* take(const std::string& key);

  Json body_;
  std::set<std::string> taken_;
};

void check_limits(const planner::Question& settled, const Limits& limits);

// For a shell, in quotes if need be.
std::string shell_word(const std::string& text);
// Numbers as commands take them, to the last bit: 0.05, and 25GB/s.
std::string exact_word(double value);
std::string rate_word(double bytes_per_second);

}  // namespace tessera::dashboard
