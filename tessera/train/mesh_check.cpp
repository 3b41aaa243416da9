#include "tessera/train/mesh_check.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/language_model.h"
#include "tessera/planner/parameters.h"
#include "tessera/schedule/schedule.h"

namespace tessera::train {
namespace {

schedule::Schedule schedule_of(const TrainConfig& config, const Resolved& resolved) {
  if (config.axes.pp() == 1) return schedule::one_f_one_b(1, 1);
  return schedule::make(config.schedule, config.axes.pp(), static_cast<int>(resolved.grad_accum),
                        static_cast<int>(config.chunks));
}

}  // namespace

void check_mesh(const TrainConfig& config, const Resolved& resolved, int ranks) {
  const auto refuse = [](const std::string& problem) { throw UsageError(problem); };
  const auto tp = config.axes.tp(), pp = config.axes.pp();
  const int shards = tp * pp;
  if (ranks % shards != 0) {
    refuse(str("--tp ", tp, " × --pp ", pp, " = ", shards, " does not divide the ", ranks,
               " ranks; ranks must be dp · tp · pp"));
  }
  if (config.sequence_parallel && tp == 1) {
    refuse("--sequence-parallel needs --tp 2 or more: the ranks of that axis split the sequence");
  }
  if (config.overlap_tp && tp == 1) {
    refuse("--overlap-tp needs --tp 2 or more: it hides the communication along that axis");
  }
  try {
    models::check_tp(resolved.model, tp);
  } catch (const UsageError& error) {
    refuse(str("--tp ", tp, ": ", error.what()));
  }
  const schedule::Schedule schedule = schedule_of(config, resolved);
  if (pp > 1 && resolved.model.layers < schedule.stage_count()) {
    refuse(str("--layers: got ", resolved.model.layers, ", fewer than the ", schedule.stage_count(),
               " stages of --pp ", pp, " with ", plural(schedule.chunks, "chunk"),
               "; must be at least one layer for each"));
  }
  if (pp > 1 && config.chunks > 1 && config.chunks != schedule.chunks) {
    refuse(str("--chunks: got ", config.chunks, ", but --schedule ", config.schedule, " has ",
               plural(schedule.chunks, "stage"), " on every rank. Use --schedule interleaved."));
  }
  planner::layers_of_stages(resolved.model, schedule.stage_count(), config.split);
  if (pp == 1) return;
  if (config.zero == 3 && schedule::splits_backward(schedule)) {
    refuse(str("--schedule ", config.schedule,
               " defers weight gradients, but --zero 3 frees a block once it has its gradients. "
               "Use another stage, or --schedule 1f1b."));
  }
  if (config.zero == 3 && config.keep_params) {
    refuse(
        "--keep-params is not supported with --pp: several micro-batches are in flight, so "
        "parameters would be kept almost always. Use --zero 2, or omit --keep-params.");
  }
  if (resolved.model.tied &&
      schedule.home(schedule.stage_count() - 1).rank == schedule.home(0).rank) {
    refuse(str("--schedule ", config.schedule,
               " has the first and the last stage on one rank, where an embedding that is tied to "
               "the head would be trained twice. Use a model with a separate head, or another "
               "schedule."));
  }
}

std::vector<int> layers_of_stages(const TrainConfig& config, const Resolved& resolved) {
  std::vector<int> layers =
      planner::layers_of_stages(resolved.model, schedule_of(config, resolved).stage_count(),
                                config.axes.pp() == 1 ? "even" : config.split);
  ++layers.front();  // the embedding
  ++layers.back();   // the head
  return layers;
}

}  // namespace tessera::train
