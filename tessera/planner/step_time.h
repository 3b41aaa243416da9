#pragma once

#include <vector>

#include "tessera/planner/question.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// Seconds of one optimizer step. They add up: step = compute + tp + pp + dp + bubble + optimizer.
struct StepTime {
  double compute = 0;  // forward, backward and recomputation of the slowest rank, all its kernels
  double tp = 0;       // exposed communication, by axis
  double pp = 0;
  double dp = 0;
  double bubble = 0;  // waiting for other stages
  double optimizer = 0;
  double exposed() const { return tp + pp + dp; }
  double step() const { return compute + exposed() + bubble + optimizer; }
};

// What one pipeline chunk costs for one micro-batch: the numbers that the schedule's clock and the
// simulator take. Tensor-parallel communication is inside `forward` and `backward`; `tp_*` say how
// much of them it is.
struct ChunkTime {
  double forward = 0;
  double backward_input = 0;  // with recomputation, if any
  double backward_weight = 0;
  double tp_forward = 0, tp_backward = 0;
  double hop = 0;         // to send its output, or its input's gradient, to a neighbour
  double grad_bytes = 0;  // of the parameters of the chunk on this rank, for data parallelism
  double param_bytes = 0;
};
// [rank][chunk]
std::vector<std::vector<ChunkTime>> chunk_times(const Question& settled);

// Seconds of a collective over `ranks` ranks, of which `per_node` share a node, alone on the
// network: collective_cost() knows the groups beside it.
double collective_time(const Hardware& hardware, Collective kind, double bytes, int ranks,
                       int per_node);

// Exposed seconds of data parallelism on a rank with so many parameters, whose forward and backward
// of one micro-batch can hide some of it.
double data_parallel_time(const Question& settled, double params, double forward, double backward);

// Of the optimizer, on such a rank.
double optimizer_time(const Question& settled, double params);

StepTime step_time(const Question& settled);

}  // namespace tessera::planner
