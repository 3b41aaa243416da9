#include "tessera/zero/engine_recovery.h"

#include <ATen/core/grad_mode.h>

#include "tessera/core/errors.h"
#include "tessera/zero/engine_impl.h"

namespace tessera::zero {

std::int64_t EngineRecovery::decided() const { return engine_.impl_->decided; }
bool EngineRecovery::is_waiting() const { return engine_.impl_->undecided.has_value(); }
const std::optional<StepOutcome>& EngineRecovery::outcome() const { return engine_.impl_->outcome; }

StepInfo EngineRecovery::complete(const StepOutcome& outcome) {
  if (!is_waiting()) throw UsageError("complete(): no step of this engine waits for its outcome");
  engine_.impl_->outcome = outcome;
  if (outcome.used.empty()) engine_.impl_->outcome->used = engine_.impl_->reducer.used();
  return engine_.impl_->apply_outcome();
}

std::vector<StateShard> EngineRecovery::shards() const {
  const at::NoGradGuard no_grad;
  const Engine::Impl& impl = *engine_.impl_;
  std::vector<StateShard> shards;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    if (impl.plan.params[i].bucket >= 0) {
      impl.add_shards(shards, static_cast<int>(i), StateScope::held);
    }
  }
  impl.add_buffers(shards);
  return shards;
}

}  // namespace tessera::zero
