#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"
#include "tessera/planner/question.h"
#include "tessera/planner/topology.h"

// [Note: layer programs] The one description of what a model costs. A program lists the operations
// of one layer, of the embedding or of the head, on one rank, in forward order. program_cost.h adds
// them up: parameters, kept bytes, operations, seconds, tensor-parallel traffic and the peaks of
// backward. Software, fused kernels, tensor and sequence parallelism and adapters choose what is in
// the list, and the sums do not ask for them again.
//
// A new operation is one more call in the builder (layer_program.cpp). Queries and keys that are
// normalized behind their product, for example:
//   TensorId heads = linear("qkv", y, {…});
//   heads = norm("qk_norm", heads, head_dim);  // the new line
//   const TensorId attended = attention(heads);
namespace tessera::planner {

struct RunQuestion;

// List of at most N items without memory of its own on the heap: programs are made often.
template <typename T, std::size_t N>
struct Few {
  std::array<T, N> items;
  std::size_t count = 0;

  Few() {}  // leaves the items uninitialized  NOLINT
  Few(std::initializer_list<T> all) {
    for (const T& item : all) push_back(item);
  }
  void push_back(const T& item) { items.at(count++) = item; }
  bool empty() const { return count == 0; }
  const T* begin() const { return items.data(); }
  const T* end() const { return items.data() + count; }
  const T& front() const { return items.front(); }
};

// Everything that the operations of one micro-batch on one rank depend on.
struct ProgramInput {
  ModelShape model;
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  int element = 4;  // Bytes of an activation, and of a parameter.
  Recompute recompute = Recompute::none;
  int tp = 1;
  bool sequence_parallel = false;
  bool fused = false;  // Fused operations of a GPU: [Note: fused operations].
  bool gpu = false;
  // Layers of the model that a pipeline stage holds, -1: all; and whether it has the ends.
  std::int64_t layers = -1;
  bool embedding = true;
  bool head = true;
  Software software = Software::tessera;
  Attention attention = Attention::fused;
  int grad = 4;                  // Bytes of a gradient.
  double accumulate_passes = 2;  // As in SoftwareFigures.
  double logit_bytes = 0;        // As in SoftwareFigures.
};
ProgramInput program_input(const Question& settled);
ProgramInput program_input(const RunQuestion& question);

// Index into Program::tensors.
using TensorId = std::uint8_t;

// Tensor of one rank.
struct Tensor {
  double bytes = 0;
  // Bytes of memory blocks that hold it, as the ledger of a run counts them.
  std::int64_t held = 0;
};

// Recomputation policies under which a tensor is kept from forward for backward, as bits.
enum KeptWhen : std::uint8_t {
  kIfBackward = 1,   // Nothing is recomputed, and backward goes through the operation.
  kIfTrained = 2,    // Nothing is recomputed, and the operation has trained parameters.
  kUnlessAgain = 4,  // Nothing is recomputed.
  kSelective = 8,
  kFull = 16,
  kIfNoBackward = 32,
};
struct Kept {
  TensorId tensor = 0;
  std::uint8_t when = 0;
};

// Product of m×k by k×n.
struct Product {
  double m = 0, n = 0, k = 0;
  double batch = 1;  // Products in one kernel.
  double times = 1;  // Kernels.
};
// Kernels of one pass through an operation.
struct Kernels {
  Few<Product, 3> products;
  double bytes = 0;            // Read and written by passes over memory.
  double launches = 0;         // Kernels besides products.
  double attention_flops = 0;  // Of fused attention.
};

// Row of a table of traffic that a collective is counted in.
enum class Sent : std::uint8_t { layers, embedding, head, loss, norms, shared, adapters };
inline constexpr std::size_t kSentRows = 7;
struct Communication {
  Axis axis = Axis::tp;
  Collective kind = Collective::all_reduce;
  Sent row = Sent::layers;
  // In backward it happens if this tensor has a gradient. Recomputation repeats those of forward.
  bool backward = false;
  TensorId of = 0;
  double elements = 0;  // Of the whole buffer.
  int element = 4;      // Bytes.
  // Collectives that carry it, in seconds: 0 if its time is in that of another.
  double calls = 0;
};

// Parameter of an operation: a vector of `rows` elements if `columns` is 0.
struct Param {
  const char* name = "";  // Without the name of the block; of an adapter "A" or "B".
  std::int64_t rows = 0, columns = 0;
  int cut = -1;  // Dim that tensor-parallel ranks share; -1: all of them have all of it.
  Few<ParamSpec::Segment, 3> segments = {};
  bool padded = false;  // Rows that do not divide are padded, as those of a vocabulary are.
  bool tied = false;    // Copy of the embedding, where the embedding is not.

  // Sizes on a rank, rounded up.
  std::int64_t rows_on_rank(int tp) const;
  std::int64_t columns_on_rank(int tp) const;
  // Elements on a rank, not rounded up unless they are padded.
  double share_on_rank(int tp) const;
};

enum class OpKind : std::uint8_t {
  checkpoint,
  norm,
  linear,
  rotary,
  attention,
  activation,
  residual,
  lookup,
  loss,
  adapter,
  collective
};

struct Operation {
  OpKind kind = OpKind::norm;
  const char* name = "";
  Few<TensorId, 2> reads;
  Few<TensorId, 2> writes;
  Few<Kept, 6> keeps;
  Kernels forward, backward_input, backward_weight;
  Few<Communication, 2> sends;
  Few<Param, 2> params;
  int adapter = -1;  // Index into adapters_of(model), if it is one.
  // Operations of attention over the whole square of scores, in forward.
  double square_flops = 0;
  bool recomputed = false;  // Repeated by selective recomputation.
  bool trained = false;     // Has parameters with gradients.
  // Result of the walk over the list: its first input has a gradient.
  bool gradient_goes_on = false;

  // Bytes that its backward needs besides what is kept, at its widest. 0: never the widest.
  double temporary = 0;
  // Bytes of activations that go when its backward is done, and the policies (KeptWhen) that keep
  // them: under others they were recomputed.
  double frees = 0;
  std::uint8_t frees_kept = 0;
  // Bytes that recomputing the layer makes besides what is kept without recomputation, the policies
  // that do, and whether as many kept bytes go then: no backward reads them.
  double copies = 0;
  std::uint8_t copied_when = 0;
  bool copies_replace = false;
};

// Part of a model with a program of its own. The first layer behind a frozen embedding differs from
// the others: its input has no gradient.
enum class ProgramPart : std::uint8_t { embedding, first_layer, layer, head };

struct Program {
  ProgramPart part = ProgramPart::layer;
  int tp = 1;
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;
  std::uint64_t with_gradient = 0;  // Tensors that have one, as bits.
  double workspace = 0;             // Bytes that its products may use.
  int batches = 1;                  // Copies of the ids and targets of a micro-batch.
  // Gradients of weights are written where the engine wants them, and temporaries include the
  // gradient that comes in.
  bool grads_in_place = false;

  bool has_gradient(TensorId tensor) const { return (with_gradient >> tensor & 1) != 0; }
};

Program layer_program(const ProgramInput& input, ProgramPart part);

// All programs of a model on one rank.
struct Programs {
  Program embedding, layer, head;
  Program first_layer;  // Empty if it is like the others.
};
Programs all_programs(const ProgramInput& input);

}  // namespace tessera::planner
