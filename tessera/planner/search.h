#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"

namespace tessera::planner {

// Search over all configurations for one model, global batch and number of devices.
struct SearchRequest {
  RunConfig base =
      RunConfig::for_plan();  // not resolved; `gpus` devices; settings not fixed below are searched
  // Settings fixed by the user.
  struct Fixed {
    PerAxis<bool> axes;  // that of dp is ignored: dp is fixed if base.axes has it
    bool zero = false, micro_batch = false, schedule = false, chunks = false;
    bool recompute = false, sequence_parallel = false, order = false;
  } fixed;
  int top = 10;
  std::int64_t most = 0;  // limit on configurations, above which search() throws; 0: no limit
};
// Fixes the settings that are given and leaves the others open.
SearchRequest search_request(const RunConfig& settings, const Catalog& catalog);

// Returns whether the step times are equal within the accuracy of predictions.
inline bool as_good_as(const Plan& plan, const Plan& best) {
  return indistinguishable(plan.time.step(), plan.interval, best.time.step(), best.interval);
}

// Best configurations, and counts of the others by reason.
struct SearchResult {
  std::vector<Plan> best;    // by predicted throughput, highest first
  std::int64_t tried = 0;    // number of configurations
  std::int64_t fitting = 0;  // number of those that fit
  // Number of rejected configurations by reason. An invalid mesh counts once, not once for each
  // combination.
  std::map<std::string, std::int64_t> ruled_out;
  // If none fits: the configuration that needs least memory.
  std::optional<Plan> closest;
  // If none fits: the fastest configuration on the smallest 2^n times as many devices on which one
  // fits. nullopt if that is more than 1,024 times as many, or impossible.
  std::optional<Plan> nearest_fit;
};
// Progress callback.
using SearchProgress = std::function<void(std::int64_t done, std::int64_t total)>;
// Throws UsageError if no configuration is possible.
SearchResult search(const SearchRequest& question, const SearchProgress& progress = {});

// Returns the result of a search, as `tessera plan --search --json` prints it.
std::string to_json(const SearchResult& result);

}  // namespace tessera::planner
