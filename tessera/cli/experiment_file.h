#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::cli {

// Settings of `tessera train` by name, as text.
using RunWords = std::vector<std::pair<std::string, std::string>>;
// A later value replaces an earlier one.
void put(RunWords& words, const std::string& name, const std::string& value);
std::string value_of(const RunWords& words, std::string_view name, const std::string& otherwise);

// [Note: experiments] An experiment is a TOML file: [[row]]s, each a run, at scales: [scale.cpu]
// and [scale.gpu]. A key of a row is one of ours, or a setting of `tessera train`; what a row says
// over `cpu` or `gpu` is for that scale alone. `micro-batch = "R3"`, or "R3+1", is what row R3
// found.
struct ExperimentScale {
  std::string name;
  int real_ranks = 1;    // rows of more ranks run as one of them (--backend dry), for memory alone
  int steps = 6;         // of a row whose time is wanted
  std::string hardware;  // of the catalogue, to predict by
  // Rows whose time is wanted run so often, by turns; what counts is the middle of their medians.
  int rounds = 1;
  bool simulate = false;  // [Note: simulated rows]
  RunWords settings;      // of all rows
};
struct ExperimentRow {
  std::string name, what, reported;
  std::string find;                      // "batch" or "model": the largest that fits; "": just run
  std::string base;                      // the row that its time and memory are compared with
  bool out_of_memory = false;            // it should not fit
  std::vector<std::int64_t> zero = {0};  // stages to run it with, one after the other
  RunWords settings;
};
struct ExperimentPlot {  // total memory against dp
  std::vector<std::int64_t> dp, zero;
  std::string batch;  // per rank: a number, or what a row found
};
struct Experiment {
  std::string name, title, about;
  ExperimentScale scale;
  std::vector<ExperimentRow> rows;
  ExperimentPlot plot;  // no dp: none
};

// The experiments that came with the program.
struct BuiltInExperiment {
  const char* name;
  const char* toml;
};
const std::vector<BuiltInExperiment>& built_in_experiments();

// As it is at one scale. Throws UsageError with the line for what cannot be.
Experiment parse_experiment(std::string_view toml, const std::string& where,
                            const std::string& scale);
// One of the built-in ones, or a file.
Experiment find_experiment(const std::string& name, const std::string& scale);

// "R3+1" is row R3 and 1; a number is no row and that number. Throws UsageError.
struct BatchReference {
  std::string row;
  std::int64_t number = 0;
};
BatchReference parse_batch(const std::string& text);

}  // namespace tessera::cli
