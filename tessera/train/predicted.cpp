// Predictions of the planner for a run: question(), predicted_step() and plan() of config.h.

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/planner/step_time.h"
#include "tessera/schedule/schedule.h"
#include "tessera/train/config.h"

namespace tessera::train {

planner::Question question(const TrainConfig& config, const Resolved& resolved,
                           std::optional<bool> shares) {
  planner::Question question = planner::described(config);
  question.hardware.name = config.device;
  question.hardware.cpu =
      config.device == "cpu" && shares.value_or(comm::backend_kind(config.backend).shares_memory);
  question.software = planner::Software::tessera;
  question.gpu = config.device == "cuda";
  question.model = resolved.model;
  question.seq = resolved.seq;
  question.axes = resolved.axes.with_dp(resolved.ranks);
  question.per_node = question.world();
  question.layout = resolved.layout;
  question.grad_reduce = resolved.policy;
  if (config.gather != "copy") question.gather.reset();  // the ranks choose
  question.grad_accum = resolved.grad_accum;
  question.global_batch = 0;
  if (question.pp() > 1) {
    question.chunks =
        schedule::make(config.schedule, question.pp(), static_cast<int>(resolved.grad_accum),
                       static_cast<int>(config.chunks))
            .chunks;
  } else {
    question.schedule = "1f1b";
    question.split = "even";
    question.chunks = 1;
  }
  return planner::settle(question);
}

std::optional<double> predicted_step(const TrainConfig& config, const Resolved& resolved) {
  if (config.hardware.empty()) return std::nullopt;
  if (resolved.model.lora.any()) {
    throw UsageError(
        "--hardware: the planner predicts memory and traffic of adapters, but not step times. "
        "Omit it with --lora-rank and --lora-from.");
  }
  planner::Catalogue catalogue;
  if (!config.hardware_file.empty()) catalogue.read(config.hardware_file);
  planner::Question asked = question(config, resolved);
  asked.hardware = catalogue.find(config.hardware);
  return planner::step_time(asked).step();
}

planner::RunPlan plan(const TrainConfig& config, const Resolved& resolved, const Coordinate& place,
                      std::optional<bool> shares) {
  return planner::plan_run(planner::run_question(question(config, resolved, shares), place));
}

}  // namespace tessera::train
