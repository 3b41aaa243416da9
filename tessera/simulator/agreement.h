#pragma once

#include <array>
#include <string>

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Where the closed forms stop and the events go on. The effects add up to simulated - planned.
struct Agreement {
  struct Effect {
    const char* name = "";
    double seconds = 0;
  };
  double planned = 0, simulated = 0;
  std::array<Effect, 3> effects;

  double apart() const { return planned / simulated - 1; }
  const Effect& largest() const;
};
// Of a scenario in which nothing is random; `result` is its simulation.
Agreement agreement_of(const Scenario& scenario, const Result& result);
// The same in words: "12 ms more: messages and collectives share links".
std::string reason(const Agreement& agreement);

}  // namespace tessera::simulator
