#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/kernels/rules.h"
#include "tessera/schedule/schedule.h"
#include "tessera/train/config.h"

namespace tessera::train {
namespace {

using C = TrainConfig;
constexpr double kMany = 1e15;  // exact in a double and beyond any use
// As fp32 sees them: of 1 an average never forgets, and by 0 a step would be divided.
constexpr double kBelowOne = 0.9999999, kAboveZero = 1e-30;

std::vector<Field> make_fields() {
  const std::string model = "Model", data = "Data", batch = "Batch", parallel = "Parallelism",
                    optimizer = "Optimizer", run = "Run", saving = "Saving", output = "Output";
  std::vector<std::string> layouts;
  for (const StateLayout& layout : state_layouts()) layouts.push_back(layout.name);
  std::vector<Field> all = {
      {model, "model", &C::model,
       "gpt-tiny, llama-tiny, gpt2-124m … gpt2-xl, or another that tessera plan knows"},
      {model, "layers", &C::layers, "blocks; 0: as the model has", 0, 1e5},
      {model, "hidden", &C::hidden, "width; 0: as the model has", 0, 1e6},
      {model, "heads", &C::heads, "attention heads; 0: as the model has", 0, 1e5},
      {model, "vocab", &C::vocab, "tokens of the vocabulary; 0: as the model has", 0, 1e8},
      {model, "positions", &C::positions, "longest sequence; 0: as the model has", 0, 1e7},

      {data, "data", &C::data, "synthetic (sorting digits) or a text file (UTF-8), read by bytes"},
      {data, "seed", &C::seed, "of parameters and data", 0, kMany},

      {batch, "steps", &C::steps, "optimizer steps", 1, kMany},
      {batch, "micro-batch", &C::micro_batch, "sequences a rank takes at once", 1, 1e9},
      {batch, "grad-accum", &C::grad_accum, "micro-batches per step; 0: from --global-batch, or 1",
       0, 1e6},
      {batch, "global-batch", &C::global_batch,
       "sequences per step over all ranks; 0: from --grad-accum", 0, 1e12},
      {batch, "seq", &C::seq, "tokens of a sequence; 0: 64, or what the model can", 0, 1e7},
      {batch,
       "checkpoint-activations",
       &C::checkpoint_activations,
       "what backward recomputes",
       0,
       0,
       {"none", "selective", "full"}},

      {parallel, "ranks", &C::ranks,
       "ranks to start on this machine, unless a launcher did; left out: dp · tp · pp, or 2", 0,
       4096},
      {parallel, "dp", &C::dp, "replicas of the model; 0: what tp and pp leave of the ranks", 0,
       4096},
      {parallel, "tp", &C::tp, "tensor parallelism: ranks that share every matrix", 1, 4096},
      {parallel, "sequence-parallel", &C::sequence_parallel,
       "with --tp: share the sequence between the matrices too"},
      {parallel, "overlap-tp", &C::overlap_tp,
       "with --tp: multiply while what the ranks of that axis exchange is on its way"},
      {parallel, "pp", &C::pp, "pipeline parallelism: ranks that share the layers", 1, 4096},
      {parallel, "schedule", &C::schedule, "order of a pipeline's passes", 0, 0, schedule::names()},
      {parallel, "split", &C::split, "layers of a pipeline's stages: even, work, or as 3,3,2"},
      {parallel, "chunks", &C::chunks, "interleaved: stages of each pipeline rank", 1, 1024},
      {parallel, "zero", &C::zero,
       "ZeRO stage: 0 shards nothing (DDP), 1 optimizer state, 2 and gradients, 3 and parameters",
       0, 3},
      {parallel, "layout", &C::layout, "types of parameters, gradients, optimizer state", 0, 0,
       layouts},
      {parallel,
       "grad-reduce",
       &C::grad_reduce,
       "reduce each micro-batch or the last; auto: last for stages 0, 1",
       0,
       0,
       {"auto", "each", "last"}},
      {parallel, "bucket-mb", &C::bucket_mb,
       "size of a bucket of gradients, in 10^6 bytes; 0: by the model", 0, 1e5},
      {parallel, "overlap-grad-reduce", &C::overlap_grad_reduce,
       "reduce gradients while backward goes on"},
      {parallel, "overlap-param-gather", &C::overlap_param_gather,
       "stages 1, 2: gather parameters while the next forward goes on"},
      {parallel, "prefetch", &C::prefetch, "stage 3: gather one unit ahead"},
      {parallel, "keep-params", &C::keep_params,
       "stage 3: keep parameters between forward and backward"},
      {parallel,
       "gather",
       &C::gather,
       "stage 3: parameters shared by the ranks of a host, or copied",
       0,
       0,
       {"auto", "alias", "copy"}},

      {optimizer, "optimizer", &C::optimizer, "rule of the update", 0, 0, rules::names()},
      {optimizer, "lr", &C::lr, "highest learning rate", 0, 1e3},
      {optimizer,
       "lr-schedule",
       &C::lr_schedule,
       "how it falls after the warm-up",
       0,
       0,
       {"constant", "linear", "cosine", "wsd"}},
      {optimizer, "warmup", &C::warmup,
       "steps of rising learning rate; -1: 20, at most a fifth of all", -1, kMany},
      {optimizer, "min-lr-ratio", &C::min_lr_ratio, "learning rate at the end, as a share", 0, 1},
      {optimizer, "decay-share", &C::decay_share, "wsd: share of the steps that decay", 0, 1},
      {optimizer, "weight-decay", &C::weight_decay, "of matrices; norms and biases have none", 0,
       1e3},
      {optimizer, "beta1", &C::beta1, "AdamW, Lion", 0, kBelowOne},
      {optimizer, "beta2", &C::beta2, "AdamW, Lion", 0, kBelowOne},
      {optimizer, "eps", &C::eps, "AdamW", kAboveZero, 1},
      {optimizer, "momentum", &C::momentum, "SGD, Muon", 0, kBelowOne},
      {optimizer, "clip", &C::clip, "largest norm of the whole gradient; 0 does not clip", 0, 1e9},
      {optimizer,
       "on-nan",
       &C::on_nan,
       "gradients that are not finite: stop, skip the step, or go back to the last checkpoint",
       0,
       0,
       {"stop", "skip", "rollback"}},

      {run, "device", &C::device, "where to compute", 0, 0, {"cpu", "cuda"}},
      {run,
       "backend",
       &C::backend,
       "of the collectives",
       0,
       0,
       comm::backend_names()},
      {run,
       "comm",
       &C::comm,
       "off: ranks do not synchronise, for measuring only",
       0,
       0,
       {"on", "off"}},
      {run, "threads", &C::threads, "of each rank; 0: its share of the cores", 0, 4096},
      {run, "memory-limit", &C::memory_limit, "bytes a rank may hold, as 2GiB; 0: no limit", 0,
       kMany},
      {run, "force", &C::force,
       "start even where the plan says that there is not enough memory for the run"},

      {saving, "save", &C::save, "folder for checkpoints"},
      {saving, "save-every", &C::save_every, "steps between checkpoints; 0: only at the end", 0,
       kMany},
      {saving, "resume", &C::resume,
       "auto: from the newest good checkpoint under --save, if there is one; or a checkpoint, or "
       "the "
       "folder of a run: the newest in it"},
      {saving, "keep-last", &C::keep_last, "newest checkpoints to keep; 0: all", 0, 1e6},
      {saving, "keep-every", &C::keep_every, "keep those of every so many steps too; 0: none", 0,
       kMany},
      {saving, "async-save", &C::async_save, "write checkpoints while training goes on"},
      {saving, "save-retries", &C::save_retries,
       "how often a save that the disk refused is tried again, after 1 s, 2 s, 4 s, …", 0, 20},
      {saving,
       "on-save-error",
       &C::on_save_error,
       "when that did not help: stop, or warn and train on (status 3 if the last save failed)",
       0,
       0,
       {"stop", "warn"}},
      {saving, "max-restarts", &C::max_restarts,
       "start again from the last checkpoint, so many times, when a rank fails", 0, 1e6},
      {saving, "elastic", &C::elastic,
       "FEWEST:MOST ranks: a restart goes on with those that are left; empty: as many as before"},

      {output, "hardware", &C::hardware,
       "entry of the catalogue of tessera plan: predict the time of a step too"},
      {output, "hardware-file", &C::hardware_file,
       "entries of your own, such as tessera calibrate writes"},
      {output, "metrics", &C::metrics, "write a JSON line per step to this file"},
      {output, "trace", &C::trace, "write spans of the first steps to this file, for Perfetto"},
      {output, "trace-steps", &C::trace_steps, "how many steps that file has", 1, 1e6},
      {output, "samples", &C::samples, "answers of the trained model to show", 0, 1000},
  };
  for (Field& each : all) each.bytes = each.name == "memory-limit";
  return all;
}

[[noreturn]] void refuse(const Field& field, std::string_view text, const std::string& wanted) {
  throw UsageError(str("--", field.name, ": got ", quote(text), ", wanted ", wanted));
}

// 1e+15 as 1000000000000000, 0.001 as it is.
std::string number(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string bounds(const Field& field) {
  return str(number(field.least), " to ", number(field.most));
}

template <typename T>
T parse_number(const Field& field, std::string_view text) {
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const char* const kind = std::is_integral_v<T> ? "a whole number" : "a number";
  if (problem != std::errc() || end != text.data() + text.size()) {
    refuse(field, text, str(kind, ", ", bounds(field)));
  }
  const auto wide = static_cast<double>(value);
  if (!(wide >= field.least && wide <= field.most)) refuse(field, text, bounds(field));
  return value;
}

bool parse_bool(const Field& field, std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  refuse(field, text, "true or false");
}

std::int64_t parse_size(const Field& field, std::string_view text) {
  try {
    return parse_bytes(text);
  } catch (const UsageError& error) {
    throw UsageError(str("--", field.name, ": ", error.what()));
  }
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = make_fields();
  return all;
}

const Field& field(std::string_view name) {
  std::vector<std::string> names;
  for (const Field& each : fields()) {
    if (each.name == name) return each;
    names.push_back(each.name);
  }
  throw UsageError(str(quote(name), " is no setting of a run", did_you_mean(name, names)));
}

void set(TrainConfig& config, const Field& field, std::string_view text) {
  std::visit(
      [&](auto member) {
        using T = std::remove_reference_t<decltype(config.*member)>;
        if constexpr (std::is_same_v<T, bool>) {
          config.*member = parse_bool(field, text);
        } else if constexpr (std::is_same_v<T, std::string>) {
          const auto& choices = field.choices;
          if (!choices.empty() &&
              std::find(choices.begin(), choices.end(), text) == choices.end()) {
            refuse(field, text, join(choices, ", ") + did_you_mean(text, choices));
          }
          config.*member = std::string(text);
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          config.*member = field.bytes ? parse_size(field, text) : parse_number<T>(field, text);
        } else {
          config.*member = parse_number<T>(field, text);
        }
      },
      field.member);
}

std::string get(const TrainConfig& config, const Field& field) {
  return std::visit(
      [&](auto member) -> std::string {
        using T = std::remove_cvref_t<decltype(config.*member)>;
        if constexpr (std::is_same_v<T, double>) {
          return number(config.*member);
        } else {
          return str(config.*member);
        }
      },
      field.member);
}

}  // namespace tessera::train
