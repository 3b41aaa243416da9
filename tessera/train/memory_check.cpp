#include "tessera/train/memory_check.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/plan.h"

namespace tessera::train {
namespace {

// Returns the bytes that each pipeline rank needs. `whole`: with buffers and temporaries, for
// suggestions, which must fit.
std::vector<std::int64_t> needs_of(const RunConfig& config, const Resolved& resolved, bool whole) {
  std::vector<std::int64_t> needs;
  for (const planner::RunMemory& memory : run_memory_by_rank(question(config, resolved))) {
    needs.push_back(whole ? memory.total() : memory.state() + memory.activations);
  }
  return needs;
}

std::int64_t host_need(const RunConfig& config, const Resolved& resolved, int ranks, bool whole) {
  if (config.device != Device::cpu) return 0;
  const std::vector<std::int64_t> needs = needs_of(config, resolved, whole);
  const std::int64_t all = std::accumulate(needs.begin(), needs.end(), std::int64_t{0});
  // Every stage has the same number of ranks. A host is assumed to have its share of each.
  const double share = static_cast<double>(ranks) / static_cast<double>(needs.size());
  return static_cast<std::int64_t>(static_cast<double>(all) * share);
}

std::int64_t device_need(const RunConfig& config, const Resolved& resolved, bool whole) {
  const std::vector<std::int64_t> needs = needs_of(config, resolved, whole);
  return *std::max_element(needs.begin(), needs.end());
}

// Names the largest known model that fits into `free` bytes with the same other settings; "" if
// none does, or if the sizes of the model were given separately.
using NeedOfRun = std::function<std::int64_t(const RunConfig&, const Resolved&)>;
std::string smaller_model(const RunConfig& config, const Resolved& resolved, std::int64_t free,
                          const NeedOfRun& need) {
  if (config.layers > 0 || config.hidden > 0 || config.heads > 0) return "";
  const auto world = static_cast<int>(resolved.axes.world());
  std::int64_t most = 0;
  RunConfig other = config, best;
  for (const ModelShape& shape : model_shapes()) {
    if (shape.params() >= resolved.model.params() || shape.params() <= most) continue;
    other.model_name = shape.name;
    try {
      if (need(other, resolve(other, world)) > free) continue;
    } catch (const Error&) {  // the other flags do not suit this model
      continue;
    }
    most = shape.params();
    best = other;
  }
  return most > 0 ? str(" such as ", best.model_name, ", which fits") : "";
}

// Returns flags with which a rank fits into its memory, in bytes; "" if none do.
std::string suggestions(const RunConfig& config, const Resolved& resolved, double rank_memory) {
  planner::RunConfig q = question(config, resolved);
  q.hardware.memory = rank_memory;
  std::string ways;
  const planner::BatchLimits limits = planner::largest_batches(q);
  if (limits.asked.micro_batch > 0 && limits.asked.micro_batch < q.micro_batch) {
    ways = str("--micro-batch ", limits.asked.micro_batch, " fits");
  }
  const std::string change = planner::least_change_that_fits(q);
  if (!change.empty()) ways += str(ways.empty() ? "" : ", and ", change);
  return ways;
}

[[noreturn]] void refuse(std::int64_t need, std::int64_t free, const std::string& where,
                         const std::string& whose, const std::string& ways,
                         const std::string& model) {
  throw UsageError(str("memory: ", whose, " at least ", format_bytes(need),
                       " for state and activations, and ", format_bytes(free), " of ", where,
                       " are free. ",
                       ways.empty() ? str("No other flag saves enough: use a smaller --model",
                                          model, ", or more machines with --tp and --pp")
                                    : ways,
                       ". --force starts the run anyway."));
}

}  // namespace

std::int64_t need_on_host(const RunConfig& config, const Resolved& resolved, int ranks) {
  return host_need(config, resolved, ranks, false);
}

std::int64_t need_on_device(const RunConfig& config, const Resolved& resolved) {
  return device_need(config, resolved, false);
}

void check_host_memory(const RunConfig& config, const Resolved& resolved, int ranks,
                       std::int64_t free, const std::string& where) {
  const std::int64_t need = need_on_host(config, resolved, ranks);
  if (config.force || need <= free) return;
  const std::int64_t each = free / std::max(1, ranks);
  refuse(need, free, where, str(ranks, ranks == 1 ? " rank needs" : " ranks need"),
         suggestions(config, resolved, static_cast<double>(each)),
         smaller_model(config, resolved, free, [&](const RunConfig& c, const Resolved& r) {
           return host_need(c, r, ranks, true);
         }));
}

void check_offload_folder(const RunConfig& config, const Resolved& resolved, int ranks) {
  if (!config.offloads_optimizer()) return;
  const std::string kind = kind_of_file(config.offload_dir);
  if (kind != "a folder") {
    throw UsageError(
        Flag("offload-dir"),
        str("got ", quote(config.offload_dir), ", which is ", kind == "nothing" ? "missing" : kind,
            "; must be a folder. Create it, or choose another one."));
  }
  const planner::RunConfig q = question(config, resolved);
  std::int64_t all = 0;
  for (int r = 0; r < q.pp(); ++r) all += planner::run_memory(q, {{Axis::pp, r}}).on_disk;
  const auto need = static_cast<std::int64_t>(static_cast<double>(all) * ranks / q.pp());
  struct statvfs space = {};
  if (::statvfs(config.offload_dir.c_str(), &space) != 0) return;
  const auto free = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
  if (need <= free) return;
  throw UsageError(Flag("offload-dir"),
                   str("got ", quote(config.offload_dir), ", which has ", format_bytes(free),
                       " of free space, but the optimizer state of ", plural(ranks, "rank"),
                       " takes ", format_bytes(need), ". Free space, or choose another folder."));
}

std::int64_t need_of_inference(const ModelShape& shape, const InferenceNeed& how) {
  // A block holds at the same time the residual stream, the norm's result, and the widest matrix.
  // Experts run one after the other, each with some of the tokens.
  const std::int64_t attention = shape.q_width() + 2 * shape.kv_width();
  const bool dense = shape.expert_layers() < shape.layers;
  const std::int64_t mlp =
      (shape.swiglu ? 2 : 1) * (dense ? shape.ffn : shape.experts.shared_width);
  const double tp = how.axes.size(Axis::tp);
  const double of_a_token =
      2.0 * static_cast<double>(shape.hidden) + static_cast<double>(std::max(attention, mlp)) / tp;
  const double parts = tp * how.axes.size(Axis::pp);
  // Those of the other ranks' experts.
  const double absent = static_cast<double>(shape.expert_layers() * shape.experts.count *
                                            (shape.swiglu ? 3 : 2) * shape.hidden) *
                        static_cast<double>(shape.experts.width) *
                        (1 - 1.0 / how.axes.size(Axis::ep));
  const double elements = (static_cast<double>(shape.params()) - absent) / parts +
                          static_cast<double>(how.tokens) * of_a_token;
  return static_cast<std::int64_t>(std::min(
      9e18, elements * static_cast<double>(how.element_bytes) + static_cast<double>(how.cache)));
}

void check_inference_memory(std::int64_t need, int ranks, std::int64_t free,
                            const std::string& where, const std::string& remedy) {
  if (need <= free / std::max(1, ranks)) return;
  throw UsageError(
      str("memory: ", ranks == 1 ? "the rank needs" : str("each of ", ranks, " ranks needs"),
          " at least ", format_bytes(need), " for parameters, activations and the cache, and ",
          format_bytes(free), " of ", where, " are free. Use ", remedy,
          ". --force starts the run anyway."));
}

void check_device_memory(const RunConfig& config, const Resolved& resolved, std::int64_t free,
                         const std::string& where) {
  const std::int64_t need = need_on_device(config, resolved);
  if (config.force || need <= free) return;
  refuse(
      need, free, where, "a rank needs", suggestions(config, resolved, static_cast<double>(free)),
      smaller_model(config, resolved, free,
                    [](const RunConfig& c, const Resolved& r) { return device_need(c, r, true); }));
}

}  // namespace tessera::train
