#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/parallel/save.h"
#include "tessera/parallel/state_shards.h"

namespace tessera::parallel {

// [Note: PowerSGD in checkpoints] Error feedback belongs to ranks, not to the model: each replica,
// and each copy of a tied parameter, has its own. It is saved as additional states of a parameter,
// each with one number per element:
//   powersgd_error.REPLICA.COPY    error of that replica and copy
//   powersgd_next.RANK.TP.COPY     the n · r numbers of Q', then zeros
// Only the sum of all errors matters. With a different number of replicas N, replica r loads the
// sum of the errors i with i % N == r. Q' depends on how the matrices are cut, and is loaded only
// if they are cut in the same way and have the same rank. Otherwise it is drawn again, which
// affects only the approximation of the next steps.

// Returns true if the name of a state is one of these.
bool is_power_sgd_state(std::string_view state);

// Adds the PowerSGD state that this rank saves.
void add_power_sgd_state(const Checkpointable& what, StateToSave& into);

// PowerSGD state that this rank loads. Call it after Engine::resume(), which resets errors.
struct PowerSgdToLoad {
  std::vector<checkpoint::WantedShard> shards;
  std::string note;  // describes state that is dropped; "" if none is
};
PowerSgdToLoad power_sgd_to_load(const Checkpointable& what, const checkpoint::Checkpoint& from);

}  // namespace tessera::parallel
