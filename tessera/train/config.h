#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/call.h"
#include "tessera/core/learning_rate.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/state_layout.h"
#include "tessera/data/data_set.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/run.h"
#include "tessera/schedule/schedule.h"

namespace tessera::train {

// Settings of a training run, and their rows of [Note: run fields].
using planner::Field;
using planner::RunConfig;
const std::vector<Field>& fields();
const Field& field(std::string_view name);  // throws UsageError that suggests a similar name

// Returns the settings as TOML, with a table for each group.
std::string to_toml(const RunConfig& config);
// Change only the settings that the file names; `named`, if not null, gets their names. Throw
// UsageError, or DataError if the file is too long, and then change nothing.
void read_config(RunConfig& config, const std::string& path, std::vector<std::string>* named);
void parse_config(RunConfig& config, std::string_view text, const std::string& where,
                  std::vector<std::string>* named = nullptr);

// Returns the number of ranks to start: --ranks, or the product of the axes; 2 if none of these is
// given.
int ranks_wanted(const RunConfig& config);

// Returns the rank that this process simulates with --backend dry. Throws UsageError if --dry-rank
// is outside the mesh.
int dry_rank(const RunConfig& config);

// Returns the number of ranks to restart with after one of `ranks` has failed and `left` remain:
// `ranks`, or, with --elastic, the largest number that makes whole replicas and divides the batch.
// 0 if no number does.
struct Resolved;
int ranks_that_fit(const RunConfig& config, const Resolved& resolved, int ranks, int left);
// Returns the largest number of replicas, at most `whole`, that divides the global batch; 0 if none
// does.
int replicas_that_fit(const RunConfig& config, const Resolved& resolved, int whole);

// Values derived from a configuration and the number of ranks.
struct Resolved {
  ModelShape model;
  StateLayout layout;
  ReducePolicy policy = ReducePolicy::last;
  LrSchedule schedule;
  double base_lr = 0;  // --lr, or planner::default_lr() of the model if it is auto
  double lr = 0;       // peak learning rate: base_lr, scaled for the batch by --lr-scaling
  Axes axes;           // dp: replicas of the model
  int ranks = 1;       // that train on other data: dp, or 1 with --comm off
  std::int64_t seq = 1;
  std::int64_t grad_accum = 1;
  std::int64_t global_batch = 1;   // over all ranks
  std::int64_t steps = 1;          // of the whole run, from its first step
  std::int64_t total_samples = 0;  // of all --epochs; 0: unlimited
  std::string tokenizer;           // fingerprint of the tokenizer of --data; "": unknown

  std::int64_t tokens_per_step() const { return global_batch * seq; }
};
// Throws UsageError that names the flag, its value and a value that works. With --epochs, or data
// that has a tokenizer, it also throws the exceptions of data/data_set.h.
Resolved resolve(const RunConfig& config, int ranks);
// Returns the settings that concern the data.
data::DataOptions data_options(const RunConfig& config, const Resolved& resolved);
// Returns the number of steps of the whole run, if the first sample of step s has the number
// s · global batch + sample_shift.
std::int64_t steps_in_all(const RunConfig& config, const Resolved& resolved,
                          std::int64_t sample_shift);
// Returns the link that --link-bandwidth and --link-latency describe.
comm::LinkOptions link_options(const RunConfig& config);
// Returns the schedule of the pipeline; one stage without a pipeline.
schedule::Schedule schedule_of(const RunConfig& config, const Resolved& resolved);
// Returns the run as a resolved question of the planner. All predictions use this question. Of the
// device it has only the kind, neither speed nor memory. `shares`: whether the ranks of a dp group
// share memory; nullopt: as --backend does.
planner::RunConfig question(const RunConfig& config, const Resolved& resolved,
                            std::optional<bool> shares = std::nullopt);
// Returns the seconds of a step that the planner predicts for --hardware; nullopt if it is empty.
std::optional<double> predicted_step(const RunConfig& config, const Resolved& resolved);
// Returns the plan for the rank at this coordinate of the mesh.
planner::RunPlan plan(const RunConfig& config, const Resolved& resolved, const Coordinate& at = {},
                      std::optional<bool> shares = std::nullopt);

}  // namespace tessera::train
