#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/core/learning_rate.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/run.h"

namespace tessera::train {

// Everything that a training run can be told. 0 (-1 where 0 means something) and "auto" stand for
// "choose".
struct TrainConfig {
  std::string model = "gpt-tiny";
  std::int64_t layers = 0, hidden = 0, heads = 0, vocab = 0, positions = 0;  // replace the model's

  std::string data = "synthetic";
  std::int64_t seed = 0;

  std::int64_t steps = 240;
  std::int64_t micro_batch = 16;
  std::int64_t grad_accum = 0;
  std::int64_t global_batch = 0;
  std::int64_t seq = 0;
  std::string checkpoint_activations = "none";

  std::int64_t ranks = 0;
  std::int64_t dp = 0, tp = 1, pp = 1;
  bool sequence_parallel = false;
  bool overlap_tp = false;
  std::string schedule = "1f1b";
  std::string split = "even";
  std::int64_t chunks = 1;
  std::int64_t zero = 0;
  std::string layout = "fp32";
  std::string grad_reduce = "auto";
  double bucket_mb = 0;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  bool prefetch = true;
  bool keep_params = false;
  std::string gather = "auto";

  std::string optimizer = "adamw";
  double lr = 3e-3;
  std::string lr_schedule = "cosine";
  std::int64_t warmup = -1;
  double min_lr_ratio = 0.1;
  double decay_share = 0.2;
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
  double momentum = 0.9;
  double clip = 1.0;
  std::string on_nan = "stop";

  std::string device = "cpu";
  std::string backend = "auto";
  std::string comm = "on";
  std::int64_t threads = 0;
  std::int64_t memory_limit = 0;
  bool force = false;

  std::string save;
  std::int64_t save_every = 0;
  std::string resume = "none";
  std::int64_t keep_last = 3;
  std::int64_t keep_every = 0;
  bool async_save = true;
  std::int64_t save_retries = 3;
  std::string on_save_error = "stop";
  std::int64_t max_restarts = 0;
  std::string elastic;

  std::string hardware;
  std::string hardware_file;
  std::string metrics;
  std::string trace;
  std::int64_t trace_steps = 20;
  std::int64_t samples = 4;

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

// [Note: fields] One table says for each field its group, its name (the flag, and the key in a
// file), its bounds and its help. Flags, files, --print-config and --help are all made from it.
struct Field {
  using Member = std::variant<std::int64_t TrainConfig::*, double TrainConfig::*,
                              bool TrainConfig::*, std::string TrainConfig::*>;
  std::string group;
  std::string name;
  Member member;
  std::string help;
  double least = 0, most = 0;             // numbers; no bounds if equal
  std::vector<std::string> choices = {};  // words
  bool bytes = false;                     // "2GiB", a number of bytes otherwise
};
const std::vector<Field>& fields();
const Field& field(std::string_view name);  // throws UsageError with the near name

// Reads what a flag or a file says. Throws UsageError that begins with "--name: got …".
void set(TrainConfig& config, const Field& field, std::string_view text);
std::string get(const TrainConfig& config, const Field& field);

// TOML, a table for each group. read_config changes only what the file names.
std::string to_toml(const TrainConfig& config);
// Throws UsageError, or DataError for a file that is too long, and then changes nothing.
void read_config(TrainConfig& config, const std::string& path, std::vector<std::string>* named);
void parse_config(TrainConfig& config, std::string_view text, const std::string& where,
                  std::vector<std::string>* named = nullptr);

// Ranks to start where nobody has: dp · tp · pp, and 2 if nothing is said of them.
int ranks_wanted(const TrainConfig& config);

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
  int dp = 1;     // replicas of the model
  int ranks = 1;  // that share an engine: dp, or 1 with --comm off
  std::int64_t seq = 1;
  std::int64_t grad_accum = 1;
  std::int64_t global_batch = 1;  // over all ranks

  std::int64_t tokens_per_step() const { return global_batch * seq; }
};
// Throws UsageError naming the flag, its value and what would work.
Resolved resolve(const TrainConfig& config, int ranks);
// The run as the planner asks about it, settled: the one question behind everything that is
// predicted. What it says of the device is where it computes, and nothing of its speed and size.
// `shares`: the ranks of a dp group share memory; not said: as --backend has it.
planner::Question question(const TrainConfig& config, const Resolved& resolved,
                           std::optional<bool> shares = std::nullopt);
// Seconds of a step that the planner expects on --hardware; nothing if that is empty.
std::optional<double> predicted_step(const TrainConfig& config, const Resolved& resolved);
// For the rank at this place of the mesh.
planner::RunPlan plan(const TrainConfig& config, const Resolved& resolved, const Place& place = {},
                      std::optional<bool> shares = std::nullopt);

}  // namespace tessera::train
