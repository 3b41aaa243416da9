#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/planner/question.h"

namespace tessera::planner {

// The number that stands for "auto" where Field::automatic allows it.
inline constexpr double kAutomatic = -1;

// Everything that a run can be told, whether it is trained, planned or simulated. 0 (-1 where 0
// means something) and "auto" stand for "choose". These are the defaults of `tessera train`.
struct RunSettings {
  std::string model = "gpt-tiny";
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, positions = 0;
  std::string init_from;
  std::int64_t pad_vocab = 0;
  std::int64_t params = 0;
  std::int64_t lora_rank = 0;
  double lora_alpha = 16, lora_dropout = -1;  // -1: as --lora-from has it, else 0
  std::string lora_targets = "auto";
  std::string lora_from;

  std::string data = "synthetic";
  std::string val_data;
  double val_fraction = 0;
  std::string order = "auto";
  std::string documents = "join";
  std::string pack = "documents";
  std::int64_t epochs = 0;
  std::string last_batch = "drop";
  std::int64_t data_ahead = 2;
  std::int64_t seed = 0;

  std::int64_t steps = 0;
  std::int64_t micro_batch = 16;
  std::int64_t grad_accum = 0;
  std::int64_t global_batch = 0;
  std::int64_t seq = 0;
  std::string recompute = "none";
  double dropout = 0, attention_dropout = 0;
  std::string software, attention;

  std::int64_t ranks = 0, gpus = 0;
  Axes axes{{Axis::dp_shard, 0}};
  bool sequence_parallel = false;
  bool slice_hops = false;
  std::string axis_order;
  bool overlap_tp = false;
  std::string schedule = "1f1b";
  std::string split = "even";
  std::int64_t chunks = 0;
  std::int64_t zero = 0;
  std::string layout = "fp32";
  std::string grad_reduce = "auto";
  std::string grad_compression = "none";
  std::int64_t powersgd_rank = 4, powersgd_warmup = 10;
  double bucket_mb = 0;
  std::int64_t bucket_size = 0;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  bool prefetch = true;
  bool keep_params = false;
  std::string gather = "auto";

  std::string optimizer = "adamw";
  double lr = kAutomatic;  // by the size of the model: default_lr()
  std::string lr_scaling = "none";
  std::int64_t lr_reference_batch = 0;
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
  std::string dry_rank;
  std::string link_bandwidth, link_latency;
  std::string cuda_graph = "auto";
  std::string comm = "on";
  std::int64_t threads = 0;
  std::int64_t memory_limit = 0;
  bool force = false;

  std::string save;
  std::int64_t save_every = 0;
  double save_minutes = 30;
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
  std::int64_t nodes = 0, gpus_per_node = 0;
  double price_per_hour = -1, watts = -1;  // -1: the hardware's
  std::int64_t eval_every = 0, eval_batches = 0;
  std::string metrics;
  std::string tensorboard;
  std::string trace;
  std::int64_t trace_steps = 20;
  std::int64_t samples = 4;

  friend bool operator==(const RunSettings&, const RunSettings&) = default;
};

// The highest learning rate of a run that names none: 0.003 up to a million parameters, and
// 0.003 · (1,000,000 / parameters)^(1/3) above, which is 0.0006 at 125 million and 0.0003 at a
// billion, close to GPT-3's table (Brown et al., 2020).
double default_lr(std::int64_t params);

// What a run takes where nothing says it.
inline constexpr std::int64_t kRunSeq = 64;  // or the model's positions, if they are fewer
inline constexpr std::int64_t kRunRanks = 2;

// Who takes a setting: `tessera train`, or all that ask the planner (plan, simulate, explain).
enum class Command : std::uint8_t { train = 1, plan = 2 };

// [Note: settings] One table has a row for each setting: its name (the flag, and the key in TOML,
// JSON and CSV files, where "_" may stand for "-"), its group, its help, what it may be, and who
// takes it. Flags, files, --print-config, --questions, --score and --help are all made from it.
struct Field {
  // Short for what stands often in the table.
  using S = RunSettings;
  // Size of an axis in RunSettings::axes.
  struct OfAxis {
    Axis axis;
  };
  // Where the value lies, which says its type too.
  using Member = std::variant<std::int64_t S::*, double S::*, bool S::*, std::string S::*, OfAxis>;

  std::string group;
  std::string name;
  Member member;
  std::string help;
  // Numbers. No bounds if equal. Whole ones are at least 1 for a plan, where what is left out is
  // chosen, and as many as the planner can count; 0 stands for that in a run.
  double least = 0, most = 0;
  // Of a whole one 0 says something, and a plan has its bounds too.
  bool bounded_in_plans = false;
  // A double may be "auto" too, which is kAutomatic.
  bool automatic = false;
  std::string bound = {};  // why there is no more, and what to do instead; for errors
  std::vector<std::string> choices = {};  // words; empty: anything
  bool bytes = false;                     // "2GiB", a number of bytes otherwise
  unsigned commands = 3;                  // bits of Command
  std::string type = {};                  // of the value, for --help; empty: by its member
  std::string planned = {};               // the default of a plan, in words
  bool free_in_plans = false;             // a plan takes other words than the choices too
  std::string formerly = {};              // an older name that is still taken

  // By its name, or by the one it had.
  bool is_called(std::string_view word) const {
    return word == name || (!formerly.empty() && word == formerly);
  }
  // Whether that command takes it.
  bool is(Command command) const { return (commands & static_cast<unsigned>(command)) != 0; }
  bool is_flag() const { return std::holds_alternative<bool S::*>(member); }
  std::string type_name() const;                     // for --help
  std::string shown_default(Command command) const;  // likewise
};
// Those that a command takes, in the order of --help.
const std::vector<Field>& fields(Command command);

// Reads what a flag or a file says. Throws UsageError that begins with "--name: got …".
void set(RunSettings& settings, const Field& field, std::string_view text,
         Command command = Command::train);
// The inverse of set(), as --print-config writes it.
std::string get(const RunSettings& settings, const Field& field);

// What the settings say of a run, in the words of a question; its model and hardware are not
// looked up here.
Question described(const RunSettings& settings);
// Bytes of a bucket of gradients, by --bucket-size or --bucket-mb; 0: by the model. Throws
// UsageError if both are given.
std::int64_t bucket_bytes_of(const RunSettings& settings);

// Texts for some of the settings of a plan, in whatever order they came.
class Settings {
 public:
  // Throws UsageError, with the near name, for a key that is no field; "micro_batch" is
  // "micro-batch". A later value replaces an earlier one.
  void set(std::string_view key, std::string value);
  // Whether it was given at all.
  bool has(std::string_view key) const;

  // The question they ask, not settled yet; what they do not say has its default. Throws UsageError
  // that names the flag and the text for what cannot be read.
  Question question(const Catalogue& catalogue) const;

 private:
  std::vector<std::optional<std::string>> values_;  // in the order of fields()
};

}  // namespace tessera::planner
