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

// One value of a swept setting that is not an axis.
struct SettingRow {
  std::string value;
  simulator::Result result;
  double tokens_per_s = 0;
  int gpus = 1;
  std::optional<Fit> fit;
  std::string refused;  // reason, if the value is not possible
};
std::string setting_sweep_text(const std::string& setting, const std::vector<SettingRow>& rows);
std::string setting_sweep_json(const std::string& setting, const std::vector<SettingRow>& rows);

}  // namespace tessera::cli
