#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/parallel/save.h"
#include "tessera/parallel/state_shards.h"

namespace tessera::parallel {

// [Note: what is left out in checkpoints] What PowerSGD keeps is not the model's but its ranks':
// each replica, and each copy of a tied parameter, owes something of its own. A parameter has it as
// further states, each with one number per element:
//   powersgd_error.REPLICA.COPY    what that one owes
//   powersgd_next.RANK.TP.COPY     the n · r numbers of Q', then zeros
// What is owed counts as a sum over all who owe: another number of replicas takes all of it, each
// replica the errors whose number leaves it when divided by the new one. Q' belongs to the matrices
// as they were cut, and is taken only where they are cut so, and have that rank; else it is drawn
// anew, which changes how well the next steps approximate and nothing else.

bool is_left_out(std::string_view state);

// What this rank saves.
void add_left_out(const Checkpointable& what, StateToSave& into);

// What it takes; after Engine::resume(), which forgets what was owed before.
struct LeftOutToLoad {
  std::vector<checkpoint::WantedShard> shards;
  std::string note;  // of what nobody here can take; "": nothing
};
LeftOutToLoad left_out_to_load(const Checkpointable& what, const checkpoint::Checkpoint& from);

}  // namespace tessera::parallel
