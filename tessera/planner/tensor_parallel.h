#pragma once

#include <cstdint>

#include "tessera/core/model_shape.h"
#include "tessera/planner/question.h"

namespace tessera::planner {

// One micro-batch through a part of Tessera's GPT or Llama.
struct TensorParallelQuestion {
  ModelShape model;
  int tp = 1;
  bool sequence_parallel = false;
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  int element = 4;  // bytes of a value between the layers, and of a parameter
  Recompute recompute = Recompute::none;
  std::int64_t layers = -1;  // of this part; -1: all
  bool embedding = true;
  bool head = true;
};

// Bytes that each rank sends to its tensor-parallel peers, ring-equivalent. Doubles: whole numbers
// below 2^53, and no overflow for what a planner may be asked.
struct TensorParallelTraffic {
  double forward = 0;
  double recompute = 0;  // of the forward again, during backward
  double backward = 0;   // without that
  double total() const { return forward + recompute + backward; }

  // The same by what travels.
  double layers = 0, embedding = 0, head = 0;  // activations and their gradients
  double loss = 0;                             // three numbers for each token
  double norms = 0, shared = 0;                // gradients of norms, and of shared kv-heads
  double adapters = 0;                         // gradients of what all ranks have of these
};

// [Note: tensor-parallel traffic] With n = batch · seq · hidden elements, an all-reduce sends
// 2(tp - 1)/tp · n · element bytes, each half of it (reduce-scatter, all-gather) half of that.
//   embedding   forward: one all-reduce
//   layer       forward: two (attention, MLP); backward: two
//   head        backward: one; forward: the loss, three fp32 numbers for each token
// Sequence parallelism cuts each all-reduce into its halves: the embedding's and the head's have
// one half forward and the other backward, a layer has four halves in each direction. The bytes of
// a step are the same, but for the gradients of norms: one all-reduce for each layer and for the
// last norm. Fewer kv-heads than ranks: the gradients of the keys' and values' weights (of all
// kv-heads) are summed once for each layer. Full recomputation repeats the forward of the layers;
// selective keeps what the collectives returned, and repeats none. Where all but adapters is frozen
// (planner/adapters.h), norms and shared weights have no gradients, and none goes to the embedding.
TensorParallelTraffic tensor_parallel_traffic(const TensorParallelQuestion& question);

}  // namespace tessera::planner
