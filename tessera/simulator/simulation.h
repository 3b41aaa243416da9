#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/expert_costs.h"
#include "tessera/planner/plan.h"
#include "tessera/simulator/failures.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"
#include "tessera/simulator/sweep.h"

// Reports of the simulator with everything that they show, and their JSON.
namespace tessera::simulator {

// Memory of a step, a suggestion if it does not fit, and the costs of experts.
struct Fit {
  double needed = 0, usable = 0;                // bytes, on the device that needs most
  std::string remedy;                           // "" if it fits
  std::optional<planner::ExpertCosts> experts;  // of a model that has some
  bool fits() const { return remedy.empty(); }
};
Fit fit_of(const planner::RunConfig& resolved);

// Difference between the planner's closed forms and the simulation. The effects add up to
// simulated - planned.
struct Agreement {
  struct Effect {
    const char* name = "";
    double seconds = 0;
  };
  double planned = 0, simulated = 0;  // seconds of a step
  std::array<Effect, 3> effects;

  // Relative difference.
  double apart() const { return planned / simulated - 1; }
  const Effect& largest() const;
};
// Explains the result of a scenario without randomness. `result` is its simulation.
Agreement agreement_of(const Scenario& scenario, const Result& result);
// Describes the largest effect: "12 ms more in the simulation: messages and collectives share
// links".
std::string reason(const Agreement& agreement);

// One simulated step with its context.
struct Simulation {
  planner::RunConfig question = planner::RunConfig::for_plan();  // resolved
  Scenario scenario;
  Result result;
  bool given_times = false;  // times are given by the user, not computed from a model
  std::optional<Fit> fit;    // only with a model
  // Comparison with the planner's closed forms; nullopt if times are given or random.
  std::optional<Agreement> agreement;
  double quicker = 0;  // with trees where they are faster than rings; 0: not requested
  std::optional<Reliability> reliability;
  double tokens_per_s() const;
};
std::string simulation_json(const Simulation& simulation);

// Simulated steps over the sizes of an axis.
struct Sweep {
  planner::RunConfig question = planner::RunConfig::for_plan();  // of the first valid size
  SweepRange range;
  std::vector<SweepRow> rows;
  std::vector<Fit> fits;  // by row; empty if times are not computed from a model
  double law_cost = 0;
  // tokens/s of the last row with trees where they are faster; 0: not requested
  double quicker = 0;
  std::optional<Reliability> reliability;  // `devices` is replaced by the GPUs of each row
};
std::string sweep_json(const Sweep& sweep);

// Checkpoint interval, and the goodput that it gives.
struct FailurePlan {
  double interval = 0;  // seconds of whole steps
  double steps = 0;
  double goodput = 0;
  Goodput simulated;
};
FailurePlan plan_failures(const Reliability& reliability, double step, std::uint64_t seed);

// Returns the spans of a result as JSON for chrome://tracing and Perfetto: a process per rank, with
// lanes for computation, data-parallel collectives and messages.
std::string trace_json(const Scenario& scenario, const Result& result);

}  // namespace tessera::simulator
