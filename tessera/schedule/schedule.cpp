#include "tessera/schedule/schedule.h"

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/schedule/build.h"

namespace tessera::schedule {

const char* name(Kind kind) noexcept {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::backward: return "backward";
    case Kind::backward_input: return "backward_input";
    case Kind::backward_weight: return "backward_weight";
    case Kind::send_activation: return "send_activation";
    case Kind::receive_activation: return "receive_activation";
    case Kind::send_gradient: return "send_gradient";
    case Kind::receive_gradient: return "receive_gradient";
  }
  return "?";
}

bool splits_backward(const Schedule& schedule) {
  for (const auto& actions : schedule.actions) {
    for (const Action& action : actions) {
      if (action.kind == Kind::backward_weight) return true;
    }
  }
  return false;
}

Schedule::Home Schedule::home(int stage) const {
  for (int r = 0; r < ranks; ++r) {
    for (int c = 0; c < chunks; ++c) {
      if (this->stage(r, c) == stage) return {r, c};
    }
  }
  throw Error(str("schedule ", name, " has no stage ", stage));
}

Schedule with_transfers(std::string name, int micros, std::vector<std::vector<int>> stages,
                        const std::vector<std::vector<Action>>& orders) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.ranks = static_cast<int>(stages.size());
  schedule.micros = micros;
  schedule.chunks = static_cast<int>(stages.front().size());
  schedule.stages = std::move(stages);
  std::vector<int> rank_of(static_cast<std::size_t>(schedule.stage_count()));
  for (int r = 0; r < schedule.ranks; ++r) {
    for (int c = 0; c < schedule.chunks; ++c) {
      rank_of[static_cast<std::size_t>(schedule.stage(r, c))] = r;
    }
  }
  const auto on_other_rank = [&](int rank, int stage) {
    return stage >= 0 && stage < schedule.stage_count() &&
           rank_of[static_cast<std::size_t>(stage)] != rank;
  };
  for (int r = 0; r < schedule.ranks; ++r) {
    std::vector<Action> actions;
    for (const Action& action : orders[static_cast<std::size_t>(r)]) {
      const int stage = schedule.stage(r, action.chunk);
      const bool forward = action.kind == Kind::forward;
      const bool backward = action.kind == Kind::backward || action.kind == Kind::backward_input;
      const auto add = [&](Kind kind) { actions.push_back({kind, action.micro, action.chunk}); };
      if (forward && on_other_rank(r, stage - 1)) add(Kind::receive_activation);
      if (backward && on_other_rank(r, stage + 1)) add(Kind::receive_gradient);
      actions.push_back(action);
      if (forward && on_other_rank(r, stage + 1)) add(Kind::send_activation);
      if (backward && on_other_rank(r, stage - 1)) add(Kind::send_gradient);
    }
    schedule.actions.push_back(std::move(actions));
  }
  return schedule;
}

}  // namespace tessera::schedule
