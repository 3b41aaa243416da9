#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// Bytes on the most loaded rank.
struct Memory {
  double params = 0, grads = 0, optimizer = 0;
  double activations = 0;  // of all micro-batches in flight
  double buffers = 0;      // gathered units and buckets
  double temporary = 0;    // logits and their gradient, workspace
  double not_at_once = 0;  // part of the above that is not allocated at the peak, if known
  double on_disk = 0;      // optimizer state in files, which is not memory
  double total() const {
    return params + grads + optimizer + activations + buffers + temporary - not_at_once;
  }
};

// Estimate for a model of which only the size is known, based on a GPT of about that size.
struct Assumed {
  ModelShape model;
  std::int64_t seq = 0;
  Memory memory;  // state of the given size, and the rest of the assumed model
};

// Collectives of one kind on one axis, on the rank that sends most along that axis.
struct TrafficRow {
  Axis axis = Axis::dp_shard;
  std::string what;  // "all-reduce of gradients"
  double calls = 0;  // per optimizer step
  double bytes = 0;  // sent per optimizer step, ring-equivalent
};

// Bytes that a rank sends in an optimizer step, by axis, ring-equivalent.
struct Traffic {
  PerAxis<double> sent;
  double dp_each = 0, dp_last = 0;  // along dp under each reduce policy
  std::vector<TrafficRow> rows;
  double total() const { return sum(sent); }
};

// Seconds of one optimizer step. They add up: step = compute + exposed + bubble + optimizer.
struct StepTime {
  double compute = 0;  // all kernels of forward, backward and recomputation on the slowest rank
  // Exposed communication. Along dp it includes the time by which collectives slow kernels down.
  PerAxis<double> comm;
  double bubble = 0;  // time spent waiting for other stages
  double optimizer = 0;
  double exposed() const { return sum(comm); }
  double step() const { return compute + exposed() + bubble + optimizer; }
};

// [Note: interval] 80% prediction interval of a step: the predicted time, multiplied by the 10% and
// 90% quantiles of measured / predicted over runs that were held out of the fit. It is wider for
// few runs, and widest if no run of that kind was measured. A kind is given by the software, one or
// several nodes, tensor parallelism across nodes, and context parallelism. `basis` names the runs.
struct Interval {
  double low = 0, high = 0;  // seconds
  std::string basis;
};
// Returns the interval around the predicted seconds `step`.
Interval step_interval(const RunConfig& resolved, double step);

// Returns whether predictions cannot distinguish two steps: one is within the interval of the
// other.
inline bool indistinguishable(double step, const Interval& interval, double other,
                              const Interval& others) {
  const auto within = [](double seconds, const Interval& of) {
    return seconds >= of.low && seconds <= of.high;
  };
  return within(step, others) || within(other, interval);
}

// Resource that limits a step.
enum class Bound : std::uint8_t { compute, memory, network };
// Returns the name for tables.
const char* name(Bound bound);

// [Note: advice] A change of flags and its gain, confirmed by another plan. It keeps the model, the
// devices and the global batch. A change is reported only for a real gain: the plan then fits; or a
// step takes at least 2% less time and the two are not indistinguishable(); or a rank needs at
// least 2% less memory, the step is not slower and memory is scarce. Of equally good ZeRO stages
// the lowest is reported. With ample memory, no stage above the plan's own is reported.
struct Advice {
  std::string text;
  std::string flags;       // in addition to those of the question: "--zero 1"
  std::string family;      // kind of change
  std::string there = {};  // end of the text: the software's own setting, and side effects
  double seconds = 0;      // saved per step; negative if slower
  double bytes = 0;        // saved per rank; negative if it needs more
  double sent = 0;         // fewer bytes sent per rank; negative if more
  bool fits = false;
  bool faster = false;  // by more than the prediction intervals
};

// Complete result for one resolved question.
struct Plan {
  RunConfig question = RunConfig::for_plan();  // resolved
  // Numbers of parameters: of the model, in its blocks and embeddings, and on the most loaded rank
  // before ZeRO.
  double parameters = 0, in_blocks = 0, in_embeddings = 0, on_a_rank = 0;
  Memory memory;                   // only the state if only the model's size is known
  int rank = 0;                    // pipeline rank that needs the most memory
  std::vector<Memory> by_rank;     // for each pipeline rank
  std::optional<Assumed> assumed;  // if only the model's size is known
  Traffic traffic;
  StepTime time;
  Interval interval;        // of the step
  double tokens_per_s = 0;  // over all devices
  double model_flops = 0;   // per step, without recomputation
  double mfu = 0;
  double price = 0, joules = 0;  // per step; 0 if the hardware entry lacks the figures
  bool fits = false;             // if only the state is known: the state fits
  bool fit_known = true;
  double margin = 0;  // free bytes; negative if it does not fit
  double needed() const { return assumed ? assumed->memory.total() : memory.total(); }
  Bound bound = Bound::compute;
  std::string remedy;
  std::vector<Advice> advice;      // largest gain first
  std::vector<std::string> notes;  // unusual but valid settings, with numbers
};

// Returns whether a run that needs `needed` bytes leaves so much memory free that saving more is
// pointless.
bool leaves_ample_memory(double needed, const Hardware& hardware);
// Returns the bytes of device memory that a run can use; fragmentation loses the rest.
double usable_memory(const Hardware& hardware);
std::vector<Memory> memory_by_rank(const RunConfig& resolved);  // for each pipeline rank
// Returns the pipeline rank that needs the most memory.
int most_loaded_rank(const std::vector<Memory>& by_rank);
Memory memory_of(const RunConfig& resolved);  // of the most loaded rank
// Returns nullopt if the model's shape is known, or if no GPT of that size suits the mesh.
std::optional<Assumed> assumed_for(const RunConfig& resolved);
// Returns the bytes that have to fit: all memory if the shape is known; otherwise the state with
// the estimate of assumed_for(), or only the state.
double needed_memory(const RunConfig& resolved);
// Returns the traffic of the rank that sends most along each axis.
Traffic traffic_of(const RunConfig& resolved);
// Returns the floating-point operations of a step: three times those of forward, without
// recomputation and with the full square of attention. With adapters, the gradients of frozen
// weights are not counted.
double model_flops(const RunConfig& resolved);

// Plans a resolved question without advice, notes and remedy.
Plan plan_numbers(const RunConfig& resolved);
// Plans a resolved question with advice, notes and remedy.
Plan advised_plan(const RunConfig& resolved);
// Resolves, plans and advises.
Plan make_plan(const RunConfig& question);

// Returns the unusual but valid settings: Plan::notes.
std::vector<std::string> notes_for(const Plan& plan);
// Returns a remedy for the plan's bound in one line, based on its advice if there is any.
std::string remedy_for(const Plan& plan);
// Returns the cheapest change of flags that makes it fit, with numbers; "" if none does on this
// mesh.
std::string least_change_that_fits(const RunConfig& resolved);

// Returns a plan as one line of JSON, as `tessera plan --json` prints it.
std::string to_json(const Plan& plan);
// Plans these settings. Throws UsageError if look_up() or make_plan() does.
std::string plan_json(const RunConfig& settings, const Catalog& catalog = Catalog());
// As above, with the settings as one JSON object, whose keys are the flags of `tessera plan` with
// underscores: plan_json(R"({"model": "gpt2-xl", "dp": 8, "zero": 1})"). Nulls are ignored.
std::string plan_json(std::string_view settings, const Catalog& catalog = Catalog());

}  // namespace tessera::planner
