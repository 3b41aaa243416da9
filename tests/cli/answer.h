#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/processes.h"

namespace tessera::cli {

// Output and status of a command.
struct Answer : Outcome {
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline Answer tessera(std::vector<std::string> words) {
  words.insert(words.begin(), TESSERA_PROGRAM);
  return {outcome_of(words)};
}

}  // namespace tessera::cli
