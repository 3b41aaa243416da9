#pragma once

#include <string>

#include "tessera/planner/question.h"

namespace tessera::planner {

// [Note: interval] What a step takes in four of five runs of its kind: the predicted time, times
// the 10% and the 90% quantile of measured / predicted over measured runs that were left out of the
// fit; wider for few runs, and widest where none was measured. Kinds are whose software it is,
// whether it is on one node or on several, and tensor parallelism across nodes; `basis` says which
// runs they were.
struct Interval {
  double low = 0, high = 0;  // seconds
  std::string basis;
};
// `step`: the predicted seconds that it is to stand around.
Interval step_interval(const Question& settled, double step);

// Returns whether no prediction is good enough to tell two steps apart: one is within the interval
// of the other.
inline bool indistinguishable(double step, const Interval& interval, double other,
                              const Interval& others) {
  const auto within = [](double seconds, const Interval& of) {
    return seconds >= of.low && seconds <= of.high;
  };
  return within(step, others) || within(other, interval);
}

}  // namespace tessera::planner
