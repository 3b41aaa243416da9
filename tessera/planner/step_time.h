#pragma once

#include <vector>

#include "tessera/planner/question.h"
#include "tessera/planner/step.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// Seconds of one optimizer step. They add up: step = compute + exposed + bubble + optimizer.
struct StepTime {
  double compute = 0;  // forward, backward and recomputation of the slowest rank, all its kernels
  // Exposed communication. Along dp it includes the time by which collectives slow kernels down.
  PerAxis<double> comm;
  double bubble = 0;  // waiting for other stages
  double optimizer = 0;
  double exposed() const { return sum(comm); }
  double step() const { return compute + exposed() + bubble + optimizer; }
};

// By closed forms: without a pipeline what the events of the simulator would say, with one nearly
// so ([Note: closed forms]).
StepTime step_time(const Step& step);
// Of describe_step(settled).
StepTime step_time(const Question& settled);
// Seconds that no step takes less than, quickly reckoned: for who looks for the best of many.
double least_step_time(const Step& step);
// Likewise wherever replicas lie, of these: the least of them.
struct ReplicaPlace {
  GroupPlace dp;
  double interference = 0;  // there
  GroupPlace across = {};   // of all-reduces over replicas
  double across_interference = 0;
};
// The least over places that are not chosen yet.
double least_step_time(const Step& step, const std::vector<ReplicaPlace>& anywhere);

}  // namespace tessera::planner
