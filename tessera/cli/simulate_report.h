#pragma once

#include <string>

#include "tessera/simulator/simulation.h"

// Reports of `tessera simulate`. The simulator itself writes the JSON.
namespace tessera::cli {

using simulator::Fit;
using simulator::Simulation;
using simulator::Sweep;

std::string simulation_text(const Simulation& simulation);
std::string sweep_title(const Sweep& sweep);
std::string sweep_text(const Sweep& sweep);

}  // namespace tessera::cli
