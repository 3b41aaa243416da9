#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/planner/plan_parts.h"

namespace tessera::planner {

// [Note: neighbors] Everything that the planner proposes is found in one way: settings of a run are
// edited, the result is planned, and what is better is kept. A candidate is rejected as early as
// possible: because it is impossible or the software lacks it, because it does not fit, or because
// a lower bound of its step time is too long. So few steps are timed.
// - Advice: the best edit of each family.
// - Remedies: the first edit, in the order of neighborhood(), that makes a plan fit.
// - Notes: certain ZeRO stages, compared with the plan by better().
// - Limits: the largest value of one setting that fits.
// - A search (search.cpp) combines all edits, and shares computations between candidates.

// Configuration whose memory, and perhaps step, is planned.
struct Candidate {
  RunConfig config = RunConfig::for_plan();  // resolved
  double memory = 0;                         // bytes needed
  bool fits = false;
  double step = 0;    // seconds; 0 if not timed
  Interval interval;  // of the step

  // Plans the memory. Throws UsageError if the configuration is impossible.
  static Candidate of(RunConfig config);
  // As above, for a resolved configuration whose memory is known.
  static Candidate of_settled(RunConfig config, double memory);
  // As of(); nullopt if resolve_beside() returns false.
  static std::optional<Candidate> beside(const RunConfig& now, RunConfig config);
  // Resolves `config` in place and plans its memory. Returns false if it is impossible, or uses a
  // feature that `now` does not use and the software lacks. `programs`: programs_in_memory() of the
  // configuration, if they are known.
  bool resolve_beside(const RunConfig& now, const Programs* programs = nullptr);
  // Computes the step, unless a lower bound shows that it takes longer than `longest` seconds;
  // returns whether it did. `parts`: part_times() of the configuration, if they are known.
  bool time_step(double longest = std::numeric_limits<double>::infinity(),
                 const PartTimes* parts = nullptr);
};
Candidate candidate_of(const Plan& plan);

// Edit of a configuration that keeps the model, the devices and the global batch.
struct Edit {
  std::string family;   // kind of edit; only the best of each kind is advised
  std::string flags;    // as typed, in addition to the question's: "--zero 1"
  Candidate candidate;  // not resolved; it may be impossible
  // The computation of a micro-batch in each part of the model is unchanged; only memory,
  // communication or the order of work differs.
  bool same_parts = false;
};
// Calls `visit` for each edit to try. Those of one family are together; the simplest that save
// memory are first, and the last ones combine them. `visit` may change the edit: the same object is
// used for all, because a configuration is large.
void for_each_neighbor(const RunConfig& resolved, const std::function<void(Edit&)>& visit);

// Returns the resolved configuration at another ZeRO stage, with the reduce policy of that stage;
// nullopt as for Candidate::beside().
std::optional<Candidate> at_stage(const RunConfig& resolved, int stage);

// Returns whether `a` is better: only `a` fits; or its ZeRO stage is lower and predictions cannot
// distinguish the steps; or its step is shorter.
bool better(const Candidate& a, const Candidate& b);

}  // namespace tessera::planner
