#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::planner {

// Trace of an all-reduce, step by step, with the values in every rank's chunks.
struct CollectiveTrace {
  struct Transfer {
    int from = 0, to = 0, chunk = 0;
    bool adds = false;  // otherwise it replaces the value
  };
  struct Step {
    std::string phase;
    std::vector<Transfer> transfers;
    std::vector<std::vector<int>> values;  // [rank][chunk], after the step
    double seconds = 0;
    double bytes = 0;  // sent by the busiest rank
  };
  int ranks = 1, chunks = 1;
  std::vector<std::vector<int>> start;  // [rank][chunk]
  std::vector<Step> steps;
  std::vector<double> sent;                // bytes by rank; a tree's ranks differ by their position
  double bytes_per_rank = 0, seconds = 0;  // bytes of the busiest rank
  double closed_form = 0;                  // seconds, by the algorithm's formula
};

// Parameters of an all-reduce to trace.
struct CollectiveInput {
  std::string algorithm = "ring";  // one of collective_algorithms()
  int ranks = 4;
  int per_node = 8;  // ranks that share the fast links
  double bytes = 200e6;
  double bandwidth = 100e9, latency = 0;                  // inside a node
  double between_bandwidth = 100e9, between_latency = 0;  // between nodes
};
// Returns the algorithms that can be traced: ring, tree, two-level.
std::vector<std::string> collective_algorithms();
// Traces an all-reduce step by step. Throws UsageError if two-level ranks do not divide evenly.
CollectiveTrace trace_collective(const CollectiveInput& ask);
// Returns the JSON object that `tessera explain collective --json` prints.
std::string to_json(const CollectiveInput& ask, const CollectiveTrace& trace);

}  // namespace tessera::planner
