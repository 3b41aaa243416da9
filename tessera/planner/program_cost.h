#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/planner/hardware.h"
#include "tessera/planner/layer_program.h"

// Sums over the operations of programs: [Note: layer programs].
namespace tessera::planner {

// [Note: kernels] A product of m×k by k×n is split into tiles of the result, and a unit of the
// device computes one tile at a time. It therefore takes whole waves of tiles, even if the last
// wave is not full, plus a few columns of k to fill each unit's pipeline. Small tiles fill waves
// better but units worse; libraries choose the best tile. The product is never faster than moving
// its operands. Elementwise kernels only move bytes.

// Returns the device seconds of `batch` products of m×k by k×n, with elements of `element` bytes.
double product_time(const Hardware& hardware, int element, double m, double n, double k,
                    double batch = 1);
// Returns the seconds of one pass over `bytes`, read and written together.
double pass_time(const Hardware& hardware, double bytes);
// Returns the seconds of fused attention with `flops` operations.
double fused_attention_time(const Hardware& hardware, int element, double flops);

// Work of a part of a step for the device and for the host that launches it.
struct Work {
  double device = 0;    // seconds
  double launches = 0;  // kernels and collectives
  double flops = 0;     // of products, including attention

  Work& operator+=(const Work& other) {
    device += other.device, launches += other.launches, flops += other.flops;
    return *this;
  }
  friend Work operator+(Work a, const Work& b) { return a += b; }
  friend Work operator*(Work a, double times) {
    return {a.device * times, a.launches * times, a.flops * times};
  }
};

// [Note: host and device] The host launches kernels ahead of the device, so the longer of the two
// times counts. Neither is always busy, so if they are nearly equal the total is longer than both.
// A power mean models this; its exponent was fitted to measured steps.
double elapsed(const SoftwareFigures& figures, const Work& work);

// Return the bytes that forward keeps for backward per micro-batch: held_bytes() in memory blocks,
// as the ledger of a run counts them; kept_bytes() exactly.
std::int64_t held_bytes(const Program& program, Recompute recompute);
double kept_bytes(const Program& program, Recompute recompute);
// Return the same for these layers of the model.
std::int64_t held_bytes(const Programs& programs, const StageLayers& chunk, Recompute recompute);
std::int64_t held_bytes(const ProgramInput& input);

// Peak of a layer's backward: bytes in addition to kept activations, and bytes of kept activations
// that are freed by then. `reduced`: the gradient of the layer's first weight is already computed.
struct BackwardPeak {
  std::int64_t temporary = 0, gone = 0;
  bool reduced = false;
};
std::vector<BackwardPeak> backward_peaks(const Program& layer, Recompute recompute);
// Returns the largest Operation::temporary.
double widest_temporary(const Program& program);

// Bytes that each rank sends along an axis for the operations of its layers, ring-equivalent.
// Doubles are exact for integers below 2^53 and do not overflow for extreme inputs.
struct OperationTraffic {
  double forward = 0;
  double recompute = 0;                       // Repeated forward, during backward.
  double backward = 0;                        // Without `recompute`.
  std::array<double, kSentRows> by_row = {};  // Total by Sent.
  // Number of collectives and messages by Sent, as Communication::calls counts them.
  std::array<double, kSentRows> calls = {};

  double total() const { return forward + recompute + backward; }
  double of(Sent row) const { return by_row[static_cast<std::size_t>(row)]; }
  double calls_of(Sent row) const { return calls[static_cast<std::size_t>(row)]; }
};

// [Note: tensor-parallel traffic] With n = batch · seq · hidden elements, each rank sends
// 2(tp-1)/tp · n of them in an all-reduce, and half as many in a reduce-scatter or an all-gather.
// - embedding: one all-reduce in forward.
// - layer: two all-reduces (attention, MLP) in forward, two in backward.
// - head: one all-reduce in backward; in forward the loss, three fp32 numbers per token.
// Sequence parallelism splits each all-reduce into a reduce-scatter and an all-gather. The
// embedding and the head have one of them in forward and the other in backward; a layer has four in
// each direction. The bytes of a step stay the same, except for the gradients of norms: one
// all-reduce for each layer and for the final norm. With fewer KV heads than ranks, the weight
// gradients of keys and values (of all KV heads) are summed once per layer. Full recomputation
// repeats the forward of the layers. Selective recomputation keeps the results of the collectives
// and repeats none. If only adapters are trained, norms and shared weights have no gradients, and
// no gradient reaches the embedding.
OperationTraffic tensor_parallel_traffic(const ProgramInput& input);
// As above, along any axis. Context parallelism: [Note: ring and ulysses]. Expert parallelism:
// [Note: operations of experts], for even routing.
OperationTraffic operation_traffic(const ProgramInput& input, Axis axis);

// Work of one micro-batch on one tensor-parallel rank in a part of the model. The `*_reduces`
// fields count reductions over tp separately: all-reduces of b·s·h values, or pairs of
// reduce-scatter and all-gather with sequence parallelism. The `*_context` fields are the
// communication along cp that attention does not hide: [Note: hidden messages].
struct PartWork {
  Work forward;
  Work recompute;  // Repeats operations whose results forward did not keep.
  Work backward_input;
  Work backward_weight;
  double forward_reduces = 0, recompute_reduces = 0, backward_reduces = 0;
  Work forward_context, recompute_context, backward_context;
  // All-to-alls along ep. Nothing hides them: experts need the rows, and layers the results.
  Work forward_experts, recompute_experts, backward_experts;
};
// [Note: hidden messages] In a ring of n ranks, a block of keys and values travels while attention
// works on the block before it. All n blocks take 1/n of the time of attention, so each of the
// n - 1 transfers exposes max(0, transfer - attention / n). In backward the gradients of a block
// leave after attention to it, on the same link as the next keys, and must have arrived when the
// next rank has computed its part of them. So they have one block less in which to hide: nothing
// hides the last ones, which return to the rank of the keys. An all-to-all hides nothing: attention
// needs its result.

// Returns the seconds that the messages of a ring add to `ranks` blocks of attention of `block`
// seconds each: keys, and in backward gradients, of these seconds each.
double exposed_ring(int ranks, double block, double keys, double gradients);

PartWork part_work(const RunConfig& resolved, const Program& program);
PartWork part_work(const RunConfig& resolved, ProgramPart part);
// Returns the work of one such reduction.
Work tensor_reduce(const RunConfig& resolved);

// Returns the floating-point operations of a program, without recomputation and with the full
// square of attention scores.
double program_flops(const Program& program);
// Returns the number of adapter parameters on a rank, not rounded up.
double adapters_on_rank(const Program& program);

}  // namespace tessera::planner
