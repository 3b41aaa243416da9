#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/cli/import.h"

namespace tessera::cli {

// Megatron-LM's flags as they were given, each with its first value. What the table of flags says
// of one, and flags that are in no table, go to the notes of what is imported.
class MegatronWords {
 public:
  // Throws UsageError for words that are no flag, and for values that are missing.
  MegatronWords(const std::vector<std::string>& words, Imported& out);

  bool has(const std::string& flag) const { return values_.contains(flag); }
  // "" where it was not given; "true" for one that takes no value.
  std::string word(const std::string& flag) const;
  // Throws UsageError for what is no number.
  double real(const std::string& flag, double otherwise) const;
  // A size: at least 1 if it is given, else 0.
  std::int64_t size(const std::string& flag) const;

 private:
  std::size_t take(const std::vector<std::string>& words, std::size_t at, Imported& out);

  std::map<std::string, std::string> values_;
};

}  // namespace tessera::cli
