// Simulation of a schedule, to validate it and to time it.

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

std::string describe(const Action& action) {
  return str(name(action.kind), " of micro-batch ", action.micro, ", chunk ", action.chunk);
}

// Simulates the schedule. Each rank starts its next action as soon as its dependencies are done.
// `cost` returns the duration of an action. Calls `taken` for every action, in an order that
// respects all dependencies. Throws Error on a deadlock.
class Simulation {
 public:
  Simulation(const Schedule& schedule, std::function<double(Kind)> cost)
      : schedule_(schedule),
        cost_(std::move(cost)),
        done_(static_cast<std::size_t>(schedule.stage_count()) *
              static_cast<std::size_t>(schedule.micros)),
        clocks_(static_cast<std::size_t>(schedule.ranks), 0.0),
        next_(static_cast<std::size_t>(schedule.ranks), 0) {
    for (auto& times : done_) times.fill(kNotYet);
  }

  void run(const std::function<void(int rank, const Action&)>& taken) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < schedule_.ranks; ++r) {
        while (step(r, taken)) moved = true;
      }
    }
    for (int r = 0; r < schedule_.ranks; ++r) {
      const auto& actions = schedule_.actions[index(r)];
      if (next_[index(r)] == actions.size()) continue;
      throw Error(str("schedule ", schedule_.name, ": rank ", r, " waits forever at action ",
                      next_[index(r)], ", ", describe(actions[next_[index(r)]])));
    }
  }

  const std::vector<double>& clocks() const { return clocks_; }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  // Time at which `kind` of this micro-batch was done at a stage.
  double& when(int stage, int micro, Kind kind) {
    return done_[index(stage) * index(schedule_.micros) + index(micro)]
                [static_cast<std::size_t>(kind)];
  }
  double sent_gradient(int stage, int micro) {
    return std::min(when(stage, micro, Kind::backward), when(stage, micro, Kind::backward_input));
  }

  // Returns the time at which the dependencies of the action are done.
  double ready(const Action& action, int stage) {
    const int last = schedule_.stage_count() - 1;
    switch (action.kind) {
      case Kind::forward: return stage == 0 ? 0 : when(stage - 1, action.micro, Kind::forward);
      case Kind::backward:
      case Kind::backward_input: {
        const double own = when(stage, action.micro, Kind::forward);
        return stage == last ? own : std::max(own, sent_gradient(stage + 1, action.micro));
      }
      case Kind::backward_weight: return when(stage, action.micro, Kind::backward_input);
      case Kind::send_activation: return when(stage, action.micro, Kind::forward);
      case Kind::send_gradient: return sent_gradient(stage, action.micro);
      case Kind::receive_activation:
        return stage == 0 ? kNotYet : when(stage - 1, action.micro, Kind::send_activation);
      case Kind::receive_gradient:
        return stage == last ? kNotYet : when(stage + 1, action.micro, Kind::send_gradient);
    }
    return kNotYet;
  }

  bool step(int rank, const std::function<void(int, const Action&)>& taken) {
    const auto& actions = schedule_.actions[index(rank)];
    std::size_t& next = next_[index(rank)];
    if (next == actions.size()) return false;
    const Action& action = actions[next];
    const int stage = schedule_.stage(rank, action.chunk);
    const double start = ready(action, stage);
    if (start == kNotYet) return false;
    // Transfers have no cost, but a receive waits for its send.
    double& clock = clocks_[index(rank)];
    const double end = std::max(clock, start) + cost_(action.kind);
    clock = end;
    when(stage, action.micro, action.kind) = end;
    taken(rank, action);
    ++next;
    return true;
  }

  const Schedule& schedule_;
  std::function<double(Kind)> cost_;
  std::vector<std::array<double, 8>> done_;  // [stage · micros + micro][kind]
  std::vector<double> clocks_;
  std::vector<std::size_t> next_;
};

void check_shape(const Schedule& s) {
  std::vector<int> seen(static_cast<std::size_t>(s.stage_count()), 0);
  for (int r = 0; r < s.ranks; ++r) {
    for (int c = 0; c < s.chunks; ++c) {
      const int stage = s.stage(r, c);
      if (stage < 0 || stage >= s.stage_count() || seen[static_cast<std::size_t>(stage)]++) {
        throw Error(str("schedule ", s.name, ": stage ", stage, " of rank ", r,
                        " does not exist or is on two ranks"));
      }
    }
  }
}

// Checks that every (micro, chunk) has one forward, either one backward or both halves, and exactly
// the transfers that its neighbors on other ranks need.
void check_counts(const Schedule& s) {
  std::vector<int> rank_of(static_cast<std::size_t>(s.stage_count()));
  for (int r = 0; r < s.ranks; ++r) {
    for (int c = 0; c < s.chunks; ++c) rank_of[static_cast<std::size_t>(s.stage(r, c))] = r;
  }
  for (int r = 0; r < s.ranks; ++r) {
    std::map<std::pair<int, int>, std::array<int, 8>> counts;
    for (const Action& a : s.actions[static_cast<std::size_t>(r)]) {
      if (a.micro < 0 || a.micro >= s.micros || a.chunk < 0 || a.chunk >= s.chunks) {
        throw Error(str("schedule ", s.name, ": rank ", r, " has ", describe(a), ", out of range"));
      }
      counts[{a.micro, a.chunk}][static_cast<std::size_t>(a.kind)]++;
    }
    for (int c = 0; c < s.chunks; ++c) {
      const int stage = s.stage(r, c);
      const int before = stage > 0 && rank_of[static_cast<std::size_t>(stage - 1)] != r;
      const int after =
          stage + 1 < s.stage_count() && rank_of[static_cast<std::size_t>(stage + 1)] != r;
      for (int m = 0; m < s.micros; ++m) {
        const auto& n = counts[{m, c}];
        const bool whole = n[1] == 1 && n[2] == 0 && n[3] == 0;
        const bool halves = n[1] == 0 && n[2] == 1 && n[3] == 1;
        const bool moved = n[4] == after && n[5] == before && n[6] == before && n[7] == after;
        if (n[0] == 1 && (whole || halves) && moved) continue;
        throw Error(str("schedule ", s.name, ": rank ", r, ", micro-batch ", m, ", chunk ", c,
                        ": an action is missing or duplicated"));
      }
    }
  }
}

// Checks that on each channel (receiving stage, direction) messages are received in the order in
// which they are sent.
void check_channels(const Schedule& s) {
  std::map<std::pair<int, bool>, std::vector<int>> sent, received;  // by receiving stage, direction
  for (int r = 0; r < s.ranks; ++r) {
    for (const Action& a : s.actions[static_cast<std::size_t>(r)]) {
      const int stage = s.stage(r, a.chunk);
      switch (a.kind) {
        case Kind::send_activation: sent[{stage + 1, true}].push_back(a.micro); break;
        case Kind::send_gradient: sent[{stage - 1, false}].push_back(a.micro); break;
        case Kind::receive_activation: received[{stage, true}].push_back(a.micro); break;
        case Kind::receive_gradient: received[{stage, false}].push_back(a.micro); break;
        default: break;
      }
    }
  }
  if (sent != received) {
    throw Error(str("schedule ", s.name,
                    ": a stage receives micro-batches in a different order than they are sent"));
  }
}

double duration(Kind kind, const Durations& durations) {
  switch (kind) {
    case Kind::forward: return durations.forward;
    case Kind::backward: return durations.backward_input + durations.backward_weight;
    case Kind::backward_input: return durations.backward_input;
    case Kind::backward_weight: return durations.backward_weight;
    default: return 0.0;
  }
}

}  // namespace

Proof validate(const Schedule& schedule) {
  check_shape(schedule);
  check_counts(schedule);
  check_channels(schedule);
  Proof proof;
  proof.in_flight.assign(static_cast<std::size_t>(schedule.ranks), 0);
  std::vector<int> held(static_cast<std::size_t>(schedule.ranks), 0);
  Simulation simulation(schedule, [](Kind) { return 0.0; });
  simulation.run([&](int rank, const Action& action) {
    int& now = held[static_cast<std::size_t>(rank)];
    int& peak = proof.in_flight[static_cast<std::size_t>(rank)];
    if (action.kind == Kind::forward) peak = std::max(peak, ++now);
    if (action.kind == Kind::backward || action.kind == Kind::backward_weight) --now;
  });
  return proof;
}

Timing time(const Schedule& schedule, const Durations& durations) {
  double work = 0;
  const auto cost = [&](Kind kind) { return duration(kind, durations); };
  Simulation simulation(schedule, cost);
  simulation.run([&](int, const Action& action) { work += cost(action.kind); });
  Timing timing;
  timing.step = *std::max_element(simulation.clocks().begin(), simulation.clocks().end());
  if (timing.step > 0) timing.bubble = 1 - work / (timing.step * schedule.ranks);
  return timing;
}

std::vector<std::vector<Slot>> timeline(const Schedule& schedule, const Durations& durations) {
  std::vector<std::vector<Slot>> slots(static_cast<std::size_t>(schedule.ranks));
  Simulation simulation(schedule, [&](Kind kind) { return duration(kind, durations); });
  simulation.run([&](int rank, const Action& action) {
    if (!is_compute(action.kind)) return;
    const double end = simulation.clocks()[static_cast<std::size_t>(rank)];
    slots[static_cast<std::size_t>(rank)].push_back(
        {action, end - duration(action.kind, durations), end});
  });
  return slots;
}

}  // namespace tessera::schedule
