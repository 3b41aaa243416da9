#pragma once

#include "tessera/planner/kernel_time.h"
#include "tessera/planner/question.h"

namespace tessera::planner {

// What one micro-batch gives one tensor-parallel rank to do in a part of the model, with the
// collectives along tp apart: `reduces` counts all-reduces of b·s·h values (or pairs of
// reduce-scatter and all-gather, with sequence parallelism).
struct PartWork {
  Work forward;
  Work recompute;  // before backward, of what forward did not keep
  Work backward_input;
  Work backward_weight;
  double forward_reduces = 0, recompute_reduces = 0, backward_reduces = 0;
};

PartWork layer_work(const Question& settled);
// Of the first layer behind a frozen embedding, whose input needs no gradient: [Note: adapters].
PartWork first_layer_work(const Question& settled);
PartWork embedding_work(const Question& settled);
PartWork head_work(const Question& settled);  // the last norm, the logits and the loss

// One all-reduce of b·s·h values along tp.
Work tensor_reduce(const Question& settled);

}  // namespace tessera::planner
