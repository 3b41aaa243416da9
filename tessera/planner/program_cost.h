#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/planner/kernel_time.h"
#include "tessera/planner/layer_program.h"

// Sums over the operations of programs: [Note: layer programs].
namespace tessera::planner {

// Returns the bytes that a program keeps from forward for backward, of one micro-batch: in blocks
// of memory, as the ledger of a run counts them, or to the byte.
std::int64_t held_bytes(const Program& program, Recompute recompute);
double kept_bytes(const Program& program, Recompute recompute);
// Returns the same of a share of the model.
std::int64_t held_bytes(const Programs& programs, const StageShare& share, Recompute recompute);
std::int64_t held_bytes(const ProgramInput& input);

// Peak of a layer's backward: bytes besides what is kept, and bytes of what is kept that have gone
// by then. `reduced`: the layer's first weight has its gradient already.
struct BackwardPeak {
  std::int64_t temporary = 0, gone = 0;
  bool reduced = false;
};
std::vector<BackwardPeak> backward_peaks(const Program& layer, Recompute recompute);
// Returns the largest Operation::temporary.
double widest_temporary(const Program& program);

// Bytes that each rank sends to its tensor-parallel peers, ring-equivalent. Doubles: whole numbers
// below 2^53, and no overflow for what a planner may be asked.
struct TensorParallelTraffic {
  double forward = 0;
  double recompute = 0;                       // Of the forward again, during backward.
  double backward = 0;                        // Without that.
  std::array<double, kSentRows> by_row = {};  // The same by Sent.

  double total() const { return forward + recompute + backward; }
  double of(Sent row) const { return by_row[static_cast<std::size_t>(row)]; }
};

// [Note: tensor-parallel traffic] With n = batch · seq · hidden elements, an all-reduce sends
// 2(tp-1)/tp · n of them from every rank, half of it (reduce-scatter, all-gather) half of that.
//   embedding   forward: one all-reduce
//   layer       forward: two (attention, MLP); backward: two
//   head        backward: one; forward: the loss, three fp32 numbers for each token
// Sequence parallelism cuts each all-reduce into its halves: the embedding's and the head's have
// one half forward and the other backward, a layer has four halves in each direction. The bytes of
// a step are the same, but for the gradients of norms: one all-reduce for each layer and for the
// last norm. Fewer kv-heads than ranks: the gradients of the keys' and values' weights (of all
// kv-heads) are summed once for each layer. Full recomputation repeats the forward of the layers;
// selective keeps what the collectives returned, and repeats none. Where all but adapters is
// frozen, norms and shared weights have no gradients, and none goes to the embedding.
TensorParallelTraffic tensor_parallel_traffic(const ProgramInput& input);

// Work of one micro-batch on one tensor-parallel rank in a part of the model. `reduces` count sums
// over the ranks apart: all-reduces of b·s·h values, or pairs of reduce-scatter and all-gather with
// sequence parallelism.
struct PartWork {
  Work forward;
  Work recompute;  // Before backward, of what forward did not keep.
  Work backward_input;
  Work backward_weight;
  double forward_reduces = 0, recompute_reduces = 0, backward_reduces = 0;
};
PartWork part_work(const Question& settled, ProgramPart part);
// Returns the work of one such sum.
Work tensor_reduce(const Question& settled);

// Returns the floating-point operations of a program, without recomputation and with the whole
// square of attention.
double program_flops(const Program& program);
// Returns the parameters of a program's adapters on a rank, not rounded up.
double adapters_on_rank(const Program& program);

}  // namespace tessera::planner
