#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/simulator/failures.h"
#include "tessera/simulator/sweep.h"

// What `tessera simulate` prints.
namespace tessera::cli {

struct Simulation {
  planner::Question question;  // settled
  simulator::Scenario scenario;
  simulator::Result result;
  double planned = 0;  // seconds of the step by the planner's closed forms; 0: not asked
  std::optional<simulator::Reliability> reliability;
  double tokens_per_s() const;
};
std::string simulation_text(const Simulation& simulation);
std::string simulation_json(const Simulation& simulation);

struct Sweep {
  planner::Question question;  // of the first size that can be
  simulator::SweepRange range;
  std::vector<simulator::SweepRow> rows;
  double law_cost = 0;
  std::optional<simulator::Reliability> reliability;  // devices: as many as each row has
};
std::string sweep_title(const Sweep& sweep);
std::string sweep_text(const Sweep& sweep);
std::string sweep_json(const Sweep& sweep);

}  // namespace tessera::cli
