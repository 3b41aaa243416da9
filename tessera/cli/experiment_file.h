#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::cli {

// Settings of `tessera train`: name and value as text.
using RunWords = std::vector<std::pair<std::string, std::string>>;
// Sets a value, replacing an earlier one.
void put(RunWords& words, const std::string& name, const std::string& value);
std::string value_of(const RunWords& words, std::string_view name, const std::string& otherwise);

// [Note: experiments] An experiment is a TOML file with [[row]]s, each a run, and scales
// ([scale.cpu] and [scale.gpu]). The keys of a row are those of ExperimentRow and settings of
// `tessera train`; keys in the subtables `cpu` and `gpu` of a row apply only to that scale.
// `micro-batch = "R3"`, or "R3+1", refers to the batch that row R3 found.
struct ExperimentScale {
  std::string name;
  int real_ranks = 1;    // rows with more ranks run as one rank (--backend dry), for memory only
  int steps = 6;         // steps of a timed row
  std::string hardware;  // catalog entry used for predictions
  // Number of times that timed rows run, alternating. The median of their medians is reported.
  int rounds = 1;
  bool simulate = false;  // [Note: simulated rows]
  RunWords settings;      // of all rows
};
struct ExperimentRow {
  std::string name, what, reported;
  std::string find;                      // "batch" or "model": find the largest; "": only run
  std::string base;                      // row to compare time and memory with
  bool out_of_memory = false;            // expected not to fit
  std::vector<std::int64_t> zero = {0};  // ZeRO stages to run with, one after the other
  RunWords settings;
};
struct ExperimentPlot {  // total memory against dp
  std::vector<std::int64_t> dp, zero;
  std::string batch;  // per rank: a number, or the batch that a row found
};
struct Experiment {
  std::string name, title, about;
  ExperimentScale scale;
  std::vector<ExperimentRow> rows;
  ExperimentPlot plot;  // empty dp: no plot
};

// Experiment compiled into the program.
struct BuiltInExperiment {
  const char* name;
  const char* toml;
};
const std::vector<BuiltInExperiment>& built_in_experiments();

// Parses an experiment at one scale. Throws UsageError that names the line.
Experiment parse_experiment(std::string_view toml, const std::string& where,
                            const std::string& scale);
// Returns a built-in experiment, or parses a file.
Experiment find_experiment(const std::string& name, const std::string& scale);

// Parsed micro-batch: "R3+1" is row R3 and number 1; "4" is an empty row and number 4.
// parse_batch() throws UsageError.
struct BatchReference {
  std::string row;
  std::int64_t number = 0;
};
BatchReference parse_batch(const std::string& text);

}  // namespace tessera::cli
