#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/cli/import.h"

namespace tessera::cli {

// Parsed flags of Megatron-LM, each with its first value. Adds the notes of the table, and notes on
// unknown flags, to `out`.
class MegatronWords {
 public:
  // Throws UsageError for words that are not flags and for missing values.
  MegatronWords(const std::vector<std::string>& words, Imported& out);

  bool has(const std::string& flag) const { return values_.contains(flag); }
  // Returns "" if the flag was not given; "true" for a flag without a value.
  std::string word(const std::string& flag) const;
  // Throws UsageError if the value is not a number.
  double real(const std::string& flag, double otherwise) const;
  // Returns a size of at least 1, or 0 if the flag was not given.
  std::int64_t size(const std::string& flag) const;

 private:
  std::size_t take(const std::vector<std::string>& words, std::size_t at, Imported& out);

  std::map<std::string, std::string> values_;
};

}  // namespace tessera::cli
