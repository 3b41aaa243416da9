#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/experiment_file.h"

namespace tessera::cli {

// Result of one run.
struct RunFacts {
  bool fits = false;   // succeeded; otherwise it ran out of memory
  double memory = 0;   // peak bytes of a rank
  double step = 0;     // seconds, median
  double exposed = 0;  // seconds of a step waiting for communication, median
  // Seconds of a step computing, without waits.
  double forward = 0, backward = 0, optimizer = 0;
  double least = 0, most = 0;  // `step` of the fastest and the slowest round
  double sent = 0;             // bytes per rank and step
  std::string why_not;         // the out-of-memory message
};
// Runs `tessera train` with these settings. Throws Error if it fails for a reason other than
// memory.
using Trains = std::function<RunFacts(const RunWords& words)>;

// Returns the median of each figure over repeated runs.
RunFacts median_of(const std::vector<RunFacts>& rounds);

// Returns the largest n in [1, most] for which `fits` is true, or 0. `fits` must be true up to some
// n and false beyond. Starts at the guess: if it is right, `fits` is called twice.
std::int64_t largest_that_fits(std::int64_t guess, std::int64_t most,
                               const std::function<bool(std::int64_t)>& fits);

// Prediction of the planner for a run.
struct Predicted {
  double memory = 0, step = 0;  // bytes, seconds; 0: unknown
  double parameters = 0;
  // Bytes of the runtime, which a rank does not count but which must fit too. About what the
  // allocator holds without being able to use it.
  double reserve = 0;
};
using Predicts = std::function<Predicted(const RunWords& words)>;

// [Note: simulated rows] An ablation does not ask how long kernels take, and their variation on
// this machine would dominate the comparison. So the simulator gets the measured computing times of
// a run of the same stage without overlap, from the same rounds, and predicts for every row the
// effect of the link, the order of calls and waiting.
using Simulates = std::function<double(const RunWords& words, const RunFacts& computing)>;
// Returns the settings of that run.
RunWords without_overlap(RunWords words);

struct ExperimentResult {
  const ExperimentRow* row = nullptr;
  std::int64_t zero = 0;
  RunWords words;    // settings of the run; after a search, with the largest that fits
  bool dry = false;  // only one of the ranks ran, for memory
  RunFacts facts;
  Predicted predicted;
  double simulated = 0;  // seconds per step; 0: not simulated
  std::int64_t dp = 1, batch = 1, accumulation = 1;
  std::int64_t found = 0, predicted_found = 0;  // largest batch, or heads of the largest model
  std::int64_t runs = 0;                        // number of runs performed
};
struct PlotPoint {
  std::int64_t dp = 1, zero = 0, batch = 0;  // batch of all ranks
  double memory = 0;                         // of all ranks
  double predicted = 0;
};
struct ExperimentResults {
  std::vector<ExperimentResult> rows;
  std::vector<PlotPoint> plot;
};

// Functions that run_experiment() calls. `report` is called before each run.
struct ExperimentTools {
  Trains trains;
  Predicts predicts;
  Simulates simulates = {};
  std::function<void(std::int64_t done, std::int64_t of, const std::string& what)> report;
};
// Runs the rows named in `only` (all if it is empty) and those that they refer to. Runs with equal
// settings are run once.
ExperimentResults run_experiment(const Experiment& experiment, const std::vector<std::string>& only,
                                 bool with_plot, const ExperimentTools& tools);

// Sets the sizes of a model with `heads` heads as wide as those of the base, and layers in
// proportion.
void grow_model(RunWords& words, std::int64_t base_heads, std::int64_t base_hidden,
                std::int64_t base_layers, std::int64_t heads);

}  // namespace tessera::cli
