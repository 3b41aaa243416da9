#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/plan.h"

namespace tessera::cli {

// Inputs of the formulas: a plan, and numbers that are not part of a plan.
struct ExplainArguments {
  planner::Plan plan;
  std::int64_t bytes = 200'000'000;  // size of a buffer
  int ranks = 16;
  double bandwidth = 100e9;  // bytes/s in one direction
  double latency = 0;
  std::int64_t memory = 0;                  // bytes of a device; 0: usable memory of the hardware
  double transfer = 0.0408, hiding = 0.03;  // seconds
  double forward = 0.120, backward = 0.220, hop = 0.005;
  double overhead = 0.05;  // per doubling of the ranks
};

struct ExplainTopic {
  std::string_view name;
  std::string_view summary;
  std::string (*text)(const ExplainArguments&);
};
// In the order of --help.
const std::vector<ExplainTopic>& explain_topics();

// Topics with their own options; argv[0] is the topic's name.
int explain_collective(int argc, char** argv);
int explain_schedule(int argc, char** argv);
int explain_zero(int argc, char** argv);
int explain_parallel(int argc, char** argv);

// In explain_context.cpp.
std::string explain_context(const ExplainArguments& arguments);
// In explain_experts.cpp.
std::string explain_experts(const ExplainArguments& arguments);
// In explain_sizes.cpp.
std::string explain_tensor(const ExplainArguments& arguments);
std::string explain_limits(const ExplainArguments& arguments);

}  // namespace tessera::cli
