#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/run_options.h"

namespace tessera::schedule {

// Kind of an action of a rank in a pipeline.
enum class Kind : std::uint8_t {
  forward,
  backward,        // gradients of inputs and weights together
  backward_input,  // the two halves, if the schedule splits the backward
  backward_weight,
  send_activation,  // to the next stage, after forward
  receive_activation,
  send_gradient,  // to the previous stage, after backward or backward_input
  receive_gradient,
};
// Returns the name for drawings and messages: "forward".
const char* name(Kind kind) noexcept;
// Returns true for computation and false for transfers.
constexpr bool is_compute(Kind kind) noexcept { return kind <= Kind::backward_weight; }

// One action of a rank. A chunk is one of the stages that the rank holds.
struct Action {
  Kind kind = Kind::forward;
  int micro = 0;
  int chunk = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

// Pipeline schedule. The executor runs it, the simulator times it, validate() checks it and the
// dashboard draws it. The model is cut into ranks · chunks stages, in order.
struct Schedule {
  std::string name;
  int ranks = 1;
  int micros = 1;                            // micro-batches in a step
  int chunks = 1;                            // stages on each rank
  std::vector<std::vector<int>> stages;      // [rank][chunk]: index of the stage
  std::vector<std::vector<Action>> actions;  // [rank]: actions in order

  int stage_count() const { return ranks * chunks; }
  // Returns the stage of a chunk.
  int stage(int rank, int chunk) const {
    return stages[static_cast<std::size_t>(rank)][static_cast<std::size_t>(chunk)];
  }
  // Rank and chunk of a stage.
  struct Home {
    int rank = 0;
    int chunk = 0;
  };
  // Inverse of stage().
  Home home(int stage) const;
};

// Each throws UsageError for unsupported sizes.
Schedule gpipe(int ranks, int micros);                    // all forwards, then all backwards
Schedule one_f_one_b(int ranks, int micros);              // each backward as early as possible
Schedule interleaved(int ranks, int micros, int chunks);  // 1F1B with several chunks per rank
Schedule zero_bubble_h1(int ranks, int micros);  // weight gradients fill the bubble; memory of 1F1B
Schedule zero_bubble_v(int ranks, int micros);   // two chunks per rank, arranged in a V

// Returns "gpipe", "1f1b", "interleaved", "zb-h1" and "zb-v".
const std::vector<std::string>& names();
// Returns the chosen schedule. Only interleaved uses `chunks`; 0 means 2 chunks.
Schedule make(ScheduleChoice choice, int ranks, int micros, int chunks = 0);
// The same by name. Throws UsageError with the nearest name.
Schedule make(std::string_view name, int ranks, int micros, int chunks = 0);

// Returns true if the schedule computes weight gradients separately, after those of inputs.
bool splits_backward(const Schedule& schedule);

// Result of validate().
struct Proof {
  std::vector<int> in_flight;  // [rank]: maximum number of (micro-batch, chunk) held at once
};

// Checks that every micro-batch passes every stage forward and backward exactly once and in order,
// that sends and receives match and have the same order on both sides, and that there is no
// deadlock. Otherwise throws Error with the rank, the position and the action.
Proof validate(const Schedule& schedule);

// Seconds of each compute action of one chunk. With interleaved schedules a chunk has a fraction of
// the work of a rank. Transfers take no time.
struct Durations {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};
// Duration of a step, in seconds.
struct Timing {
  double step = 0;
  double bubble = 0;  // idle fraction of the time of all ranks, 0 to 1
};
// Simulates a step in which each action starts as soon as its dependencies are done.
Timing time(const Schedule& schedule, const Durations& durations);

// Compute action with its begin and end, in seconds from the start of the step.
struct Slot {
  Action action;
  double begin = 0;
  double end = 0;
};
// Returns the compute actions of each rank, in order: [rank].
std::vector<std::vector<Slot>> timeline(const Schedule& schedule, const Durations& durations);

}  // namespace tessera::schedule
