// State of an engine after another rank was lost, for runs that continue without it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/zero/engine.h"

namespace tessera::zero {

// [Note: decided steps] The update of a step begins with an exchange of norms and losses, after
// which every rank has the outcome of the step: whether it is skipped, and the factor of its
// gradients. The rest of the update is local, unless the optimizer exchanges whole matrices. If a
// rank is lost during the exchange, some ranks may have the outcome and others not. Every rank had
// its reduced gradients before it took part in the exchange. So a rank without the outcome can
// still make the update when it gets the outcome from another one: no gradient is sent again. If no
// rank has the outcome, no rank has changed a parameter, and the step is discarded.
struct StepOutcome {
  std::int64_t step = 0;  // counted since the engine was made, from 1
  double loss = 0;
  double squares = 0;      // sum of squares of the global gradient
  std::vector<bool> used;  // by parameter of this rank: some rank has a gradient
};

// Interface of an engine on the CPU for [Note: recovery]. Valid while the engine exists. Nothing
// here is collective, and all of it works after calls of the engine have failed.
class EngineRecovery {
 public:
  explicit EngineRecovery(Engine& engine) : engine_(engine) {}

  // Number of steps since the engine was made that this rank has updated or skipped.
  std::int64_t decided() const;
  // Returns true if the next step has its reduced gradients and waits for its outcome.
  bool is_waiting() const;
  // Returns the outcome of the last exchange that ended on this rank. Its step may be
  // decided() + 1.
  const std::optional<StepOutcome>& outcome() const;
  // Makes the update of the step that is_waiting(). Afterwards only this class may be used. If
  // outcome.used is empty, the parameters that have a gradient on this rank are updated.
  StepInfo complete(const StepOutcome& outcome);
  // Returns the trained state that this rank holds, as Engine::state(StateScope::held) does, after
  // the last decided step: views of the engine's memory, without frozen parameters.
  std::vector<StateShard> shards() const;

 private:
  Engine& engine_;
};

}  // namespace tessera::zero
