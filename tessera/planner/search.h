#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/planner/settings.h"

namespace tessera::planner {

// All ways to train one model with one global batch on so many devices.
struct SearchQuestion {
  Question base;  // not settled; gpus says how many, and whatever is not fixed below is tried out
  // What the user has decided.
  struct Fixed {
    bool tp = false, pp = false, zero = false, micro_batch = false, schedule = false;
    bool chunks = false, recompute = false, sequence_parallel = false, order = false;
    bool replicas = false;
  } fixed;
  int top = 10;
  std::int64_t most = 0;  // configurations to try before it is refused; 0: any number
};
// What the settings name is fixed, the rest is open.
SearchQuestion search_question(const Settings& settings, const Catalogue& catalogue);

// Returns whether its step is the best one's as far as predictions can tell.
inline bool as_good_as(const Plan& plan, const Plan& best) {
  return indistinguishable(plan.time.step(), plan.interval, best.time.step(), best.interval);
}

// The best ways, and why the others are not among them.
struct SearchResult {
  std::vector<Plan> best;    // by predicted throughput, the highest first
  std::int64_t tried = 0;    // configurations
  std::int64_t fitting = 0;  // of them
  // How many were ruled out, by reason; a mesh that cannot be counts once, whatever else it might
  // have been combined with.
  std::map<std::string, std::int64_t> ruled_out;
};
// Called now and then, for a progress bar.
using SearchProgress = std::function<void(std::int64_t done, std::int64_t total)>;
// Throws UsageError for what no configuration could meet.
SearchResult search(const SearchQuestion& question, const SearchProgress& progress = {});

}  // namespace tessera::planner
