#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/group.h"
#include "tessera/schedule/schedule.h"

namespace tessera::pipeline {

// The group of the ranks with the first and the last stage, which share an embedding. Collective
// over these two; ranks between them, and a rank that has both stages, get a group of their own.
comm::Group tied_group(const comm::Group& pp, const schedule::Schedule& schedule);

// Sums gradients of parameters that both ranks of a group hold, each in place, after the last
// backward of a step. Both ranks pass the same parameters in the same order, and end with the same
// bits. In a group of one there is nothing to do: the parameter is one tensor there.
void sum_tied(const comm::Group& group, const std::vector<at::Tensor>& gradients);

}  // namespace tessera::pipeline
