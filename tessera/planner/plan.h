#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/interval.h"
#include "tessera/planner/question.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

// Bytes on the most loaded rank.
struct Memory {
  double params = 0, grads = 0, optimizer = 0;
  double activations = 0;  // of all micro-batches in flight
  double buffers = 0;      // gathered units and buckets on their way
  double temporary = 0;    // logits and their gradient, workspace
  double not_at_once = 0;  // of these, what is not there at the peak, where that is known
  double total() const {
    return params + grads + optimizer + activations + buffers + temporary - not_at_once;
  }
};

// What a model known by its size alone needs besides its state, estimated for a GPT of about that
// size.
struct Assumed {
  ModelShape model;
  std::int64_t seq = 0;
  Memory memory;  // the state of the size that was asked for, and the rest of the assumed model
};

// One kind of collective on one axis, on the rank that sends most along that axis.
struct TrafficRow {
  Axis axis = Axis::dp_shard;
  std::string what;  // "all-reduce of gradients"
  double calls = 0;  // per optimizer step
  double bytes = 0;  // sent per optimizer step, ring-equivalent
};

// Bytes that a rank sends in an optimizer step, by axis, as rings would send them.
struct Traffic {
  PerAxis<double> sent;
  double dp_each = 0, dp_last = 0;  // along dp under either reduce policy
  std::vector<TrafficRow> rows;
  double total() const { return sum(sent); }
};

// What a step spends most of its time on.
enum class Bound : std::uint8_t { compute, memory, network };
// In words, for tables.
const char* name(Bound bound);

// [Note: advice] A change of flags and what it gains, found by planning again with it. It keeps the
// model, the devices and the global batch. Told only where the gain is real: what did not fit does;
// or a step takes at least 2% less and the two are not indistinguishable(); or a rank needs at
// least 2% less, the step takes no longer and memory is scarce. Of ZeRO stages that do as well the
// lowest is told, and none above the plan's own where memory is ample.
struct Advice {
  std::string text;
  std::string flags;       // over those of the question: "--zero 1"
  std::string family;      // what kind of change it is
  std::string there = {};  // end of the text: how its software is asked for it, what it costs
  double seconds = 0;      // that a step takes less; negative: more
  double bytes = 0;        // that a rank needs less, likewise
  double sent = 0;         // that a rank sends less, likewise
  bool fits = false;
  bool faster = false;  // by more than the predictions' intervals
};

// All that is said of one settled question.
struct Plan {
  Question question;  // settled
  // Parameters: of the model; in its blocks and embeddings; on the most loaded rank, before ZeRO.
  double parameters = 0, in_blocks = 0, in_embeddings = 0, on_a_rank = 0;
  Memory memory;                // of a model known by its size alone: its state, and nothing else
  int rank = 0;                 // the pipeline rank that needs most memory
  std::vector<Memory> by_rank;  // of all pipeline ranks
  std::optional<Assumed> assumed;  // of a model known by its size alone
  Traffic traffic;
  StepTime time;
  Interval interval;        // of the step
  double tokens_per_s = 0;  // of all devices together
  double model_flops = 0;   // per step, without recomputation
  double mfu = 0;
  double price = 0, joules = 0;  // per step, where hardware says; else 0
  bool fits = false;             // where nothing is known but the state: that alone does
  bool fit_known = true;
  double margin = 0;  // bytes left, negative if it does not fit
  double needed() const { return assumed ? assumed->memory.total() : memory.total(); }
  Bound bound = Bound::compute;
  std::string remedy;
  std::vector<Advice> advice;      // what gains most first
  std::vector<std::string> notes;  // what is odd but possible, with its numbers
};

// Returns whether a run that needs so much leaves enough memory free that there is no reason to
// need less.
bool leaves_ample_memory(double needed, const Hardware& hardware);
// Bytes of `memory` that a run can fill: the allocator of a device loses some to fragments.
double usable_memory(const Hardware& hardware);
std::vector<Memory> memory_by_rank(const Question& settled);  // of the pipeline
// The pipeline rank that needs most.
int most_loaded_rank(const std::vector<Memory>& by_rank);
Memory memory_of(const Question& settled);  // of that one
// Nothing for a model with sizes, and for a size that no GPT of ours has on such a mesh.
std::optional<Assumed> assumed_for(const Question& settled);
// What has to fit: all of a model with sizes; state and what assumed_for() adds; or state.
double needed_memory(const Question& settled);
// Of the rank that sends most along each axis.
Traffic traffic_of(const Question& settled);
// Floating-point operations of a step: three times those of the forward pass, whatever is
// recomputed, with the whole square of attention; with adapters without the gradients of frozen
// weights.
double model_flops(const Question& settled);

// All but advice, notes and remedy, of a settled question.
Plan plan_numbers(const Question& settled);
// With them.
Plan advised_plan(const Question& settled);
// Settles, plans and advises.
Plan make_plan(const Question& question);

// Changes of flags that gain something, planned again one by one: what make_plan() fills in.
std::vector<Advice> advice_for(const Plan& plan);
// Likewise: what is odd but possible.
std::vector<std::string> notes_for(const Plan& plan);
// In one line; by the plan's advice, where it has any.
std::string remedy_for(const Plan& plan);
// The least change of flags that makes it fit, in the order of what it costs, with the numbers; ""
// if none does on this mesh.
std::string least_change_that_fits(const Question& settled);

}  // namespace tessera::planner
