#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/core/learning_rate.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/state_layout.h"
#include "tessera/data/data_set.h"
#include "tessera/planner/run.h"
#include "tessera/planner/settings.h"

namespace tessera::train {

// What a training run can be told, and the rows of [Note: settings] that say so.
using TrainConfig = planner::RunSettings;
using planner::Field;
const std::vector<Field>& fields();
const Field& field(std::string_view name);  // throws UsageError with the near name

// TOML, a table for each group. read_config changes only what the file names.
std::string to_toml(const TrainConfig& config);
// Throws UsageError, or DataError for a file that is too long, and then changes nothing.
void read_config(TrainConfig& config, const std::string& path, std::vector<std::string>* named);
void parse_config(TrainConfig& config, std::string_view text, const std::string& where,
                  std::vector<std::string>* named = nullptr);

// Ranks to start where nobody has: dp · tp · pp, and 2 if nothing is said of them.
int ranks_wanted(const TrainConfig& config);

// The rank that a process plays with --backend dry. Throws UsageError if --dry-rank is outside the
// mesh.
int dry_rank(const TrainConfig& config);

// Ranks to go on with when one of `ranks` has failed and so many are left: as many as before, or,
// with --elastic, the most that make whole replicas and divide the batch. 0: there is no such
// number.
struct Resolved;
int ranks_that_fit(const TrainConfig& config, const Resolved& resolved, int ranks, int left);

// What follows from a configuration once the number of ranks is known.
struct Resolved {
  ModelShape model;
  StateLayout layout;
  ReducePolicy policy = ReducePolicy::last;
  planner::Recompute recompute = planner::Recompute::none;
  LrSchedule schedule;
  double base_lr = 0;  // --lr, or where it is auto planner::default_lr() of the model
  double lr = 0;       // the highest: base_lr, scaled for the batch as --lr-scaling says
  Axes axes;           // dp: replicas of the model
  int ranks = 1;       // that share an engine: dp, or 1 with --comm off
  std::int64_t seq = 1;
  std::int64_t grad_accum = 1;
  std::int64_t global_batch = 1;    // over all ranks
  std::int64_t steps = 1;           // of a run from its beginning
  std::int64_t samples_in_all = 0;  // of --epochs; 0: they never end
  std::string tokenizer;  // the fingerprint of the one that --data was made with; "": not known

  std::int64_t tokens_per_step() const { return global_batch * seq; }
};
// Throws UsageError naming the flag, its value and what would work; and for --epochs, or data that
// has a tokenizer, what data/data_set.h throws.
Resolved resolve(const TrainConfig& config, int ranks);
// What the settings say of the data.
data::DataOptions data_options(const TrainConfig& config, const Resolved& resolved);
// Steps of a run to its end, if the first sample of step s has the number s · global batch + shift.
std::int64_t steps_in_all(const TrainConfig& config, const Resolved& resolved,
                          std::int64_t sample_shift);
// The link that --link-bandwidth and --link-latency ask for.
comm::LinkOptions link_options(const TrainConfig& config);
// The run as the planner asks about it, settled: the one question behind everything that is
// predicted. What it says of the device is where it computes, and nothing of its speed and size.
// `shares`: the ranks of a dp group share memory; not said: as --backend has it.
planner::Question question(const TrainConfig& config, const Resolved& resolved,
                           std::optional<bool> shares = std::nullopt);
// Seconds of a step that the planner expects on --hardware; nothing if that is empty.
std::optional<double> predicted_step(const TrainConfig& config, const Resolved& resolved);
// For the rank at this place of the mesh.
planner::RunPlan plan(const TrainConfig& config, const Resolved& resolved,
                      const Coordinate& place = {}, std::optional<bool> shares = std::nullopt);

}  // namespace tessera::train
