#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/simulator/agreement.h"
#include "tessera/simulator/failures.h"
#include "tessera/simulator/sweep.h"

// Answers of the simulator with all that belongs to them, and their JSON.
namespace tessera::simulator {

// Whether a step could run at all, and what would fit if it could not.
struct Fit {
  double needed = 0, usable = 0;  // bytes of the most loaded device
  std::string remedy;             // empty: it fits
  bool fits() const { return remedy.empty(); }
};
Fit fit_of(const planner::Question& settled);

struct Simulation {
  planner::Question question;  // settled
  Scenario scenario;
  Result result;
  bool given_times = false;  // by the user, not of a model
  std::optional<Fit> fit;    // of a model
  // With the planner's closed forms; not where times are given or random.
  std::optional<Agreement> agreement;
  double quicker = 0;  // with trees where they are quicker than rings; 0: not asked
  std::optional<Reliability> reliability;
  double tokens_per_s() const;
};
std::string simulation_json(const Simulation& simulation);

struct Sweep {
  planner::Question question;  // of the first size that can be
  SweepRange range;
  std::vector<SweepRow> rows;
  std::vector<Fit> fits;  // beside them, where times are a model's
  double law_cost = 0;
  double quicker = 0;  // tokens/s of the last row with trees where they are quicker; 0: not asked
  std::optional<Reliability> reliability;  // devices: as many as each row has
};
std::string sweep_json(const Sweep& sweep);

// How often to save, and what is left of the time then.
struct FailurePlan {
  double interval = 0;  // whole steps
  double steps = 0;
  double goodput = 0;
  Goodput simulated;
};
FailurePlan plan_failures(const Reliability& reliability, double step, std::uint64_t seed);

}  // namespace tessera::simulator
