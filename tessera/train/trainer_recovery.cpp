// State of a trainer that passes to the trainer of another generation: [Note: recovery].

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/kept_state.h"
#include "tessera/train/trainer_impl.h"
#include "tessera/zero/engine_of_part.h"

namespace tessera::train {

StepStatus Trainer::status() const {
  const zero::EngineRecovery engine(impl_->engine());
  StepStatus status;
  status.steps = impl_->steps_before + engine.decided();
  status.is_waiting = engine.is_waiting();
  status.outcome = engine.outcome();
  if (status.outcome) status.outcome->step += impl_->steps_before;
  return status;
}

KeptState Trainer::keep(const std::optional<zero::StepOutcome>& outcome) {
  const memory::OwnerScope owner(impl_->ledger);
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  zero::EngineRecovery engine(impl.engine());
  if (outcome) {
    zero::StepOutcome next = *outcome;
    next.step = engine.decided() + 1;
    engine.complete(next);
  }
  KeptState state;
  state.steps = impl.steps_before + engine.decided();
  state.sample_shift = impl.sample_shift;
  state.found_non_finite = impl.found_non_finite;
  state.counts = impl.engine().progress();
  for (zero::StateShard& shard : engine.shards()) {
    shard.values = shard.values.clone();
    state.shards.push_back(std::move(shard));
  }
  state.history = std::move(impl.history);
  // The last step may have been updated, but not finished.
  if (impl.now.step == state.steps && state.steps > 0 &&
      (state.history.empty() || state.history.back().step < state.steps)) {
    StepMetrics last = impl.now;
    last.loss = engine.outcome()->loss;
    last.grad_norm = std::sqrt(engine.outcome()->squares);
    last.skipped = !std::isfinite(last.loss) || !std::isfinite(last.grad_norm);
    state.history.push_back(last);
  }
  state.evaluation = impl.evaluation;
  return state;
}

namespace {

// Broadcasts the state of a replica to the others.
void send_state(const ParallelModel& model, int source,
                const std::vector<zero::StateShard>& shards) {
  const zero::DataGroups& groups = model.engine().data_groups();
  const bool is_whole = model.engine().options().stage == 0;  // on each rank of groups.all
  const comm::Group& group = is_whole ? groups.all : groups.replicate;
  const int root = is_whole ? source * model.mesh().axes().size(Axis::cp) : source;
  for (const zero::StateShard& shard : shards) {
    if (shard.frozen) continue;
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = str("state ", shard.state, " ", shard.param);
    group.broadcast(shard.values, root, call).wait();
  }
}

}  // namespace

void Trainer::take(const KeptState& state, int source, bool sends) {
  const memory::OwnerScope owner(impl_->ledger);
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  std::map<std::pair<std::string, std::string>, const zero::StateShard*> kept;
  for (const zero::StateShard& shard : state.shards) kept[{shard.param, shard.state}] = &shard;
  const std::vector<zero::StateShard> shards = impl.engine().state(zero::StateScope::held);
  for (const zero::StateShard& shard : shards) {
    if (shard.frozen || state.shards.empty()) continue;
    const auto found = kept.find({shard.param, shard.state});
    if (found == kept.end() || found->second->begin != shard.begin ||
        found->second->values.numel() != shard.values.numel()) {
      throw Error(str("The kept state has no ", shard.state, " of ", quote(shard.param),
                      " with the elements that this rank has now"));
    }
    shard.values.copy_(found->second->values);
  }
  if (sends) send_state(impl.model, source, shards);
  impl.engine().resume(state.counts);
  impl.steps_before = state.steps - impl.launched;
  impl.sample_shift = state.sample_shift;
  impl.found_non_finite = state.found_non_finite;
  impl.history = state.history;
  impl.evaluation = state.evaluation;
}

}  // namespace tessera::train
