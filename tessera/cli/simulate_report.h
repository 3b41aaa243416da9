#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/simulator/failures.h"
#include "tessera/simulator/sweep.h"

// What `tessera simulate` prints.
namespace tessera::cli {

// Whether a step could run at all, and what would fit if it could not.
struct Fit {
  double needed = 0, usable = 0;  // bytes of the most loaded device
  std::string remedy;             // empty: it fits
  bool fits() const { return remedy.empty(); }
};
Fit fit_of(const planner::Question& settled);

struct Simulation {
  planner::Question question;  // settled
  simulator::Scenario scenario;
  simulator::Result result;
  bool given_times = false;  // by the user, not of a model
  std::optional<Fit> fit;    // of a model
  double planned = 0;        // seconds of the step by the planner's closed forms; 0: not asked
  double quicker = 0;        // with trees where they are quicker than rings; 0: not asked
  std::optional<simulator::Reliability> reliability;
  double tokens_per_s() const;
};
std::string simulation_text(const Simulation& simulation);
std::string simulation_json(const Simulation& simulation);

struct Sweep {
  planner::Question question;  // of the first size that can be
  simulator::SweepRange range;
  std::vector<simulator::SweepRow> rows;
  std::vector<Fit> fits;  // beside them, where times are a model's
  double law_cost = 0;
  double quicker = 0;  // tokens/s of the last row with trees where they are quicker; 0: not asked
  std::optional<simulator::Reliability> reliability;  // devices: as many as each row has
};
std::string sweep_title(const Sweep& sweep);
std::string sweep_text(const Sweep& sweep);
std::string sweep_json(const Sweep& sweep);

}  // namespace tessera::cli
