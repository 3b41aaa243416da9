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

// What came of one run.
struct RunFacts {
  bool fits = false;   // it ended well; otherwise it was out of memory
  double memory = 0;   // bytes of a rank at its peak
  double step = 0;     // seconds, median
  double exposed = 0;  // of them, waiting for communication, median
  // Of them, computing; without what was waited for.
  double forward = 0, backward = 0, optimizer = 0;
  double least = 0, most = 0;  // `step` of the quickest and the slowest round
  double sent = 0;             // bytes of a rank and step
  std::string why_not;         // the line that told of memory
};
// Runs `tessera train` with these. Throws Error for whatever else ends it.
using Trains = std::function<RunFacts(const RunWords& words)>;

// Of several runs of the same: the middle of each number.
RunFacts middle(const std::vector<RunFacts>& rounds);

// The largest n of 1 … most for which `fits`, or 0, if that holds up to some n and not beyond. It
// is asked near the guess first: of a good one, twice.
std::int64_t largest_that_fits(std::int64_t guess, std::int64_t most,
                               const std::function<bool(std::int64_t)>& fits);

// What the planner says of such a run.
struct Predicted {
  double memory = 0, step = 0;  // 0: it cannot say
  double parameters = 0;
  // Beside what a rank counts: the runtime's own, which has to fit as well. It is about what the
  // allocator keeps and cannot use.
  double reserve = 0;
};
using Predicts = std::function<Predicted(const RunWords& words)>;

// [Note: simulated rows] How long a kernel takes is not what an ablation asks: the machine's mood
// would be all that a comparison shows. So the simulator is told what computing took in a run of
// the same stage with nothing overlapped, of the same rounds, and says what the link, the order of
// calls and waiting make of it in every row.
using Simulates = std::function<double(const RunWords& words, const RunFacts& computing)>;
// The words of that run.
RunWords without_overlap(RunWords words);

struct ExperimentResult {
  const ExperimentRow* row = nullptr;
  std::int64_t zero = 0;
  RunWords words;    // as it was run; where something was searched for, with the largest
  bool dry = false;  // one rank of them: memory alone
  RunFacts facts;
  Predicted predicted;
  double simulated = 0;  // seconds of a step; 0: nobody asked
  std::int64_t dp = 1, batch = 1, accumulation = 1;
  std::int64_t found = 0, predicted_found = 0;  // batch, or heads of the model
  std::int64_t runs = 0;                        // that it took
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

// Runs the rows called `only` (all, if it is empty) and those that they refer to. A run that was
// there before is not run again. `told` hears what is about to be run.
struct ExperimentTools {
  Trains trains;
  Predicts predicts;
  Simulates simulates = {};
  std::function<void(std::int64_t done, std::int64_t of, const std::string& what)> told;
};
ExperimentResults run_experiment(const Experiment& experiment, const std::vector<std::string>& only,
                                 bool with_plot, const ExperimentTools& tools);

// The model with so many heads of the given one's width, and layers in proportion.
void grow_model(RunWords& words, std::int64_t base_heads, std::int64_t base_hidden,
                std::int64_t base_layers, std::int64_t heads);

}  // namespace tessera::cli
