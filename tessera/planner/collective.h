#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::planner {

// An all-reduce as it is told step by step, with numbers in the cells.
struct CollectiveStory {
  struct Transfer {
    int from = 0, to = 0, chunk = 0;
    bool adds = false;  // or replaces
  };
  struct Step {
    std::string phase;
    std::vector<Transfer> transfers;
    std::vector<std::vector<int>> values;  // after it: [rank][chunk]
    double seconds = 0;
    double bytes = 0;  // that the busiest rank sends
  };
  int ranks = 1, chunks = 1;
  std::vector<std::vector<int>> start;  // [rank][chunk]
  std::vector<Step> steps;
  double bytes_per_rank = 0, seconds = 0;
  double closed_form = 0;  // seconds, by the formula for the algorithm
};

// Which all-reduce, of what, over which links.
struct CollectiveAsk {
  std::string algorithm = "ring";  // of collective_algorithms()
  int ranks = 4;
  int per_node = 8;  // ranks that share the quick links
  double bytes = 200e6;
  double bandwidth = 100e9, latency = 0;                  // inside a node
  double between_bandwidth = 100e9, between_latency = 0;  // between nodes
};
// Those that can be told: ring, tree, two-level.
std::vector<std::string> collective_algorithms();
// Plays it step by step. Throws UsageError.
CollectiveStory tell_collective(const CollectiveAsk& ask);
// A JSON object, as tessera explain collective --json prints it.
std::string to_json(const CollectiveAsk& ask, const CollectiveStory& story);

}  // namespace tessera::planner
