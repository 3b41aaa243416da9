#pragma once

#include <array>
#include <string>

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

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

}  // namespace tessera::simulator
