#include "tessera/train/memory_check.h"

#include <algorithm>
#include <functional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/plan.h"

namespace tessera::train {
namespace {

// By pipeline rank. `whole`: with buffers and temporaries, for what is said to fit.
LeastNeed need_of(const planner::Question& question, int pp_rank, bool whole = false) {
  const planner::RunQuestion run = planner::run_question(question, {{"pp", pp_rank}});
  const planner::RunMemory memory = planner::run_memory(run);
  return {planner::built_bytes(run), whole ? memory.total() : memory.state() + memory.activations};
}

LeastNeed of_host(const TrainConfig& config, const Resolved& resolved, int ranks, bool whole) {
  const planner::Question q = question(config, resolved);
  LeastNeed all;
  for (int r = 0; r < q.pp(); ++r) {
    const LeastNeed one = need_of(q, r, whole);
    all.building += one.building;
    if (config.device == "cpu") all.training += one.training;
  }
  // Every stage has as many ranks; a host that has some of them has about its share.
  const double share = static_cast<double>(ranks) / q.pp();
  const auto part = [&](std::int64_t bytes) {
    return static_cast<std::int64_t>(static_cast<double>(bytes) * share);
  };
  return {part(all.building), part(all.training)};
}

LeastNeed of_device(const TrainConfig& config, const Resolved& resolved, bool whole) {
  const planner::Question q = question(config, resolved);
  LeastNeed most;
  for (int r = 0; r < q.pp(); ++r) {
    const LeastNeed one = need_of(q, r, whole);
    if (one.most() > most.most()) most = one;
  }
  return most;
}

// The largest known model that needs no more than is free in a run that is otherwise the same;
// "" if there is none, or if the model's sizes were given one by one.
using NeedOfRun = std::function<LeastNeed(const TrainConfig&, const Resolved&)>;
std::string smaller_model(const TrainConfig& config, const Resolved& resolved, std::int64_t free,
                          const NeedOfRun& need) {
  if (config.layers > 0 || config.hidden > 0 || config.heads > 0) return "";
  const int world = resolved.dp * static_cast<int>(config.tp * config.pp);
  std::int64_t most = 0;
  TrainConfig other = config, best;
  for (const ModelShape& shape : model_shapes()) {
    if (shape.params() >= resolved.model.params() || shape.params() <= most) continue;
    other.model = shape.name;
    try {
      if (need(other, resolve(other, world)).most() > free) continue;
    } catch (const UsageError&) {  // the other flags are not for this one
      continue;
    }
    most = shape.params();
    best = other;
  }
  return most > 0 ? str(" such as ", best.model, ", which fits") : "";
}

// Flags that would do where a rank has so many bytes; "" if none.
std::string ways_out(const TrainConfig& config, const Resolved& resolved, std::int64_t free,
                     double of_a_rank) {
  planner::Question q = question(config, resolved);
  if (need_of(q, 0).building > free) return "";  // no flag changes what is built
  q.hardware.memory = of_a_rank;
  std::string ways;
  const planner::BatchLimits limits = planner::largest_batches(q);
  if (limits.asked.micro_batch > 0 && limits.asked.micro_batch < q.micro_batch) {
    ways = str("--micro-batch ", limits.asked.micro_batch, " fits");
  }
  const std::string change = planner::least_change_that_fits(q);
  if (!change.empty()) ways += str(ways.empty() ? "" : ", and ", change);
  return ways;
}

[[noreturn]] void refuse(const LeastNeed& need, std::int64_t free, const std::string& where,
                         const std::string& whose, const std::string& ways,
                         const std::string& model) {
  throw UsageError(str("memory: ", whose, " at least ", format_bytes(need.most()), ", and ",
                       format_bytes(free), " of ", where,
                       " are free: ", format_bytes(need.building),
                       " while the model is built in fp32, before it is sharded, and ",
                       format_bytes(need.training), " of state and activations in training; ",
                       ways.empty() ? str("no flag changes that enough: wanted a smaller --model",
                                          model, ", or more machines with --tp and --pp")
                                    : ways,
                       "; --force starts it all the same"));
}

}  // namespace

LeastNeed need_on_host(const TrainConfig& config, const Resolved& resolved, int ranks) {
  return of_host(config, resolved, ranks, false);
}

LeastNeed need_on_device(const TrainConfig& config, const Resolved& resolved) {
  return of_device(config, resolved, false);
}

void check_host_memory(const TrainConfig& config, const Resolved& resolved, int ranks,
                       std::int64_t free, const std::string& where) {
  const LeastNeed need = need_on_host(config, resolved, ranks);
  if (config.force || need.most() <= free) return;
  const std::int64_t each = free / std::max(1, ranks);
  refuse(need, free, where, str(ranks, ranks == 1 ? " rank needs" : " ranks need"),
         need.building > free ? "" : ways_out(config, resolved, each, static_cast<double>(each)),
         smaller_model(config, resolved, free, [&](const TrainConfig& c, const Resolved& r) {
           return of_host(c, r, ranks, true);
         }));
}

void check_device_memory(const TrainConfig& config, const Resolved& resolved, std::int64_t free,
                         const std::string& where) {
  const LeastNeed need = need_on_device(config, resolved);
  if (config.force || need.most() <= free) return;
  refuse(need, free, where, "a rank needs",
         ways_out(config, resolved, free, static_cast<double>(free)),
         smaller_model(config, resolved, free, [](const TrainConfig& c, const Resolved& r) {
           return of_device(c, r, true);
         }));
}

}  // namespace tessera::train
