#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::schedule {

// What a rank can do in a pipeline.
enum class Kind : std::uint8_t {
  forward,
  backward,        // of inputs and weights at once
  backward_input,  // the two halves of it, where a schedule takes them apart
  backward_weight,
  send_activation,  // to the next stage, after forward
  receive_activation,
  send_gradient,  // to the stage before, after backward or backward_input
  receive_gradient,
};
// "forward": for drawings and messages.
const char* name(Kind kind) noexcept;
// Takes time of its own; the others hand over what is there.
constexpr bool is_compute(Kind kind) noexcept { return kind <= Kind::backward_weight; }

// What a rank does next. A chunk is one of the pieces of the model that the rank holds.
struct Action {
  Kind kind = Kind::forward;
  int micro = 0;
  int chunk = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

// A pipeline schedule as a value: the executor runs it, the simulator times it, the validator
// proves it, a page draws it. The model is cut into ranks · chunks stages, in order.
struct Schedule {
  std::string name;
  int ranks = 1;
  int micros = 1;                            // micro-batches in a step
  int chunks = 1;                            // stages on each rank
  std::vector<std::vector<int>> stages;      // [rank][chunk]: which stage that is
  std::vector<std::vector<Action>> actions;  // [rank]: in order

  int stage_count() const { return ranks * chunks; }
  // Which stage of the model it is.
  int stage(int rank, int chunk) const {
    return stages[static_cast<std::size_t>(rank)][static_cast<std::size_t>(chunk)];
  }
  // Where a stage lives.
  struct Home {
    int rank = 0;
    int chunk = 0;
  };
  // The inverse of stage().
  Home home(int stage) const;
};

// Each throws UsageError for sizes that it cannot have.
Schedule gpipe(int ranks, int micros);                    // all forwards, then all backwards
Schedule one_f_one_b(int ranks, int micros);              // each backward as early as it can be
Schedule interleaved(int ranks, int micros, int chunks);  // 1F1B with several chunks per rank
Schedule zero_bubble_h1(int ranks, int micros);  // weight gradients fill the bubble; memory of 1F1B
Schedule zero_bubble_v(int ranks, int micros);   // two chunks per rank, laid out like a V

// "gpipe", "1f1b", "interleaved", "zb-h1" or "zb-v". `chunks` counts for interleaved only; 0
// means 2 there.
const std::vector<std::string>& names();
// By one of these names. Throws UsageError with the near one.
Schedule make(std::string_view name, int ranks, int micros, int chunks = 0);

// Whether it takes weight gradients apart from those of inputs, and so puts them off.
bool splits_backward(const Schedule& schedule);

// What a validated schedule promises.
struct Proof {
  std::vector<int> in_flight;  // [rank]: most activations of one (micro-batch, chunk) held at once
};

// Proves that every micro-batch passes every stage forward and backward exactly once and in order,
// that sends and receives match and are in the same order on both sides, and that no rank waits for
// ever. Throws Error that names rank, position and action otherwise.
Proof validate(const Schedule& schedule);

// Seconds of a step, and of work in it, when every action takes as long as given and transfers
// nothing; per chunk, so a stage of an interleaved schedule has a fraction of a rank's work.
struct Durations {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};
// What a step of such actions is like.
struct Timing {
  double step = 0;
  double bubble = 0;  // idle fraction of all ranks, from 0 to the end of the step
};
// Plays it, each action as early as those it waits for allow.
Timing time(const Schedule& schedule, const Durations& durations);

// When each rank computes what, in that time.
struct Slot {
  Action action;
  double begin = 0;
  double end = 0;
};
std::vector<std::vector<Slot>> timeline(const Schedule& schedule,
                                        const Durations& durations);  // [rank]

}  // namespace tessera::schedule
