#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"
#include "tessera/planner/run_config.h"
#include "tessera/planner/topology.h"

// [Note: layer programs] The single description of a model's costs. A program lists the operations
// of one layer, of the embedding or of the head, on one rank, in forward order. program_cost.h sums
// over the list: parameters, kept bytes, floating-point operations, seconds, tensor-parallel
// traffic and the peaks of backward. Software, fused kernels, tensor and sequence parallelism and
// adapters only decide which operations are in the list; the sums do not depend on them.
//
// To add an operation, add one call in the builder (layer_program.cpp). Example: normalize queries
// and keys after their projection:
//   TensorId heads = linear("qkv", y, {…});
//   heads = norm("qk_norm", heads, head_dim);  // the new line
//   const TensorId attended = attention(heads);
namespace tessera::planner {

// List of at most N items, stored inline: programs are built often, so they avoid the heap.
template <typename T, std::size_t N>
struct Few {
  std::array<T, N> items;
  std::size_t count = 0;

  Few() {}  // leaves the items uninitialized  NOLINT
  // Throws std::out_of_range for more than N items.
  Few(std::initializer_list<T> all) {
    for (const T& item : all) push_back(item);
  }
  // Throws std::out_of_range if it is full.
  void push_back(const T& item) { items.at(count++) = item; }
  bool empty() const { return count == 0; }
  const T* begin() const { return items.data(); }
  const T* end() const { return items.data() + count; }
  const T& front() const { return items.front(); }
};

// Inputs that determine the operations of one micro-batch on one rank.
struct ProgramInput {
  ModelShape model;
  std::int64_t batch = 1;
  std::int64_t seq = 1;  // Tokens of a whole sequence.
  int element = 4;       // Bytes per activation value and per parameter.
  Recompute recompute = Recompute::none;
  Axes axes = {};
  int sequence_ranks = 1;  // As in RunConfig.
  bool fused = false;      // Fused operations of a GPU: [Note: fused operations].
  bool gpu = false;
  bool fp8 = false;    // Products of the linears of layers: RunConfig::precision.
  bool drops = false;  // Dropout of attention, with which it is not fused on a GPU.
  // Number of layers that the pipeline stage holds (-1: all), and whether it holds the ends.
  std::int64_t layers = -1;
  bool embedding = true;
  bool head = true;
  Software software = Software::tessera;
  Attention attention = Attention::fused;
  int grad = 4;                             // Bytes per gradient value.
  double accumulate_passes = 2;             // As in SoftwareFigures.
  double logit_bytes = 0;                   // As in SoftwareFigures.
  ContextKind cp_kind = ContextKind::ring;  // With cp > 1: ring or ulysses.
  std::int64_t tokens = 0;  // Of a sequence on this rank: RunConfig::rank_tokens(). 0: all.
  int ep_rank = -1;         // Index along ep; -1: one with the most experts.
  double imbalance = 1;     // RunConfig::expert_received()
  // Weight gradients of experts are written directly to the engine's buffers on a CPU too.
  bool expert_grads_in_place = false;
  // Of the layers above, number of the first without experts; -1: those of the whole model.
  std::int64_t dense = -1;
};
// Experts [first, last) of a rank of ep.
struct ExpertRange {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
};
// Returns the experts of a rank of ep, or of the first rank with the most for `rank` -1.
ExpertRange experts_on_rank(std::int64_t experts, int ep, int rank);
// Returns the input for a resolved run.
ProgramInput program_input(const RunConfig& resolved);
// As above, with the element size of stored values if values are computed in another type.
ProgramInput memory_input(const RunConfig& resolved);

// Index into Program::tensors.
using TensorId = std::uint8_t;

// Tensor on one rank.
struct Tensor {
  double bytes = 0;
  // Bytes of the memory blocks that hold it, as the ledger of a run counts them.
  std::int64_t held = 0;
};

// Bit mask of the recomputation policies under which forward keeps a tensor for backward.
enum KeptWhen : std::uint8_t {
  kIfBackward = 1,   // No recomputation, and backward passes through the operation.
  kIfTrained = 2,    // No recomputation, and the operation has trained parameters.
  kUnlessAgain = 4,  // No recomputation.
  kSelective = 8,
  kFull = 16,
  kIfNoBackward = 32,
};
// Tensor kept for backward, with the policies that keep it as a bit mask.
struct Kept {
  TensorId tensor = 0;
  std::uint8_t when = 0;
};

// Matrix product of m×k by k×n.
struct Product {
  double m = 0, n = 0, k = 0;
  double batch = 1;  // Number of products in one kernel.
  double times = 1;  // Number of kernels.
  int element = 0;   // Bytes per element; 0: those of the other products.
};
// Kernels launched by one pass through an operation.
struct Kernels {
  Few<Product, 3> products;
  double bytes = 0;            // Bytes read and written by elementwise passes.
  double launches = 0;         // Number of kernels other than products.
  double attention_flops = 0;  // FLOPs of fused attention.
};

// Row of the traffic table to which a collective belongs.
enum class Sent : std::uint8_t {
  layers,
  embedding,
  head,
  loss,
  norms,
  shared,
  adapters,
  ring,             // Keys and values of ring attention.
  ring_gradients,   // Their gradients.
  exchange_qkv,     // All-to-alls of ulysses: queries, keys and values, and
  exchange_result,  // the result of attention.
  to_experts,       // All-to-alls of experts: tokens, and
  from_experts,     // the results.
  expert_weights    // Weights of the experts' results, and their gradients.
};
inline constexpr std::size_t kSentRows = 14;
// Collective that an operation needs, or messages of it.
struct Communication {
  Axis axis = Axis::tp;
  Collective kind = Collective::all_reduce;
  Sent row = Sent::layers;
  // If true, it runs in backward, provided that tensor `of` has a gradient. Full recomputation
  // repeats the collectives of forward.
  bool backward = false;
  TensorId of = 0;
  double elements = 0;  // Elements of the whole buffer, or of a message.
  int element = 4;      // Bytes per element.
  // Number of collectives to charge in the step time; 0 if another entry includes its time. For
  // Collective::send, the number of messages: [Note: ring and ulysses].
  double calls = 0;

  // Returns the bytes that each of `ranks` ranks sends, ring-equivalent.
  double sent_bytes(int ranks) const;
};

// Parameter of an operation. A vector of `rows` elements if `columns` is 0.
struct Param {
  const char* name = "";  // Name within its block; "A" or "B" for an adapter.
  std::int64_t rows = 0, columns = 0;
  int cut = -1;  // Dim sharded over tensor-parallel ranks; -1: replicated on all of them.
  Few<ParamSpec::Segment, 3> segments = {};
  bool padded = false;  // Pads the rows to a multiple of tp, as for a vocabulary.
  bool tied = false;    // Copy of the embedding on a rank that does not hold the embedding.
  // Number of experts on this rank, each of which has such a parameter, with its number before the
  // name. 0: not a parameter of experts.
  std::int64_t experts = 0;

  // Returns the number of such parameters on this rank.
  std::int64_t count() const { return experts > 0 ? experts : 1; }

  // Return the sizes of one parameter on a rank, rounded up.
  std::int64_t rows_on_rank(int tp) const;
  std::int64_t columns_on_rank(int tp) const;   // as above
  std::int64_t elements_on_rank(int tp) const;  // as above
  // Returns the number of elements on a rank, rounded up only if `padded`.
  double share_on_rank(int tp) const;
};

// Kind of an operation.
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
  collective,
  exchange
};

// Operation of a layer on one rank: its parameters, kernels, kept tensors and collectives.
struct Operation {
  OpKind kind = OpKind::norm;
  const char* name = "";
  Few<TensorId, 2> reads;
  Few<TensorId, 2> writes;
  Few<Kept, 6> keeps;
  Kernels forward, backward_input, backward_weight;
  Few<Communication, 4> sends;
  Few<Param, 2> params;
  int adapter = -1;  // Index into adapters_of(model); -1 if it is not an adapter.
  // Forward FLOPs of attention over the full square of scores, without causal savings.
  double square_flops = 0;
  bool recomputed = false;  // Repeated by selective recomputation.
  bool trained = false;     // Has parameters with gradients.
  // Set by ProgramBuilder::take(): its first input has a gradient.
  bool gradient_goes_on = false;

  // Peak bytes of its backward in addition to kept activations. 0: it never sets the peak of a
  // program.
  double temporary = 0;
  double temporary_again = 0;  // Bytes in addition if the layer is recomputed.
  // Bytes of activations freed when its backward is done, and the policies (KeptWhen) that keep
  // them. Under other policies they were recomputed.
  double frees = 0;
  std::uint8_t frees_kept = 0;
  // Extra bytes that recomputing the layer allocates beyond the activations kept without
  // recomputation, and the policies under which it does. `copies_replace`: the same number of kept
  // bytes is freed then, because no backward reads them.
  double copies = 0;
  std::uint8_t copied_when = 0;
  bool copies_replace = false;
};

// Part of a model that has its own program. The first layer after a frozen embedding differs from
// the others because its input has no gradient. In a model with experts, `layer` has experts, and
// `dense_layer` is one of the first layers without.
enum class ProgramPart : std::uint8_t { embedding, first_layer, layer, head, dense_layer };

// Operations of one part of a model on one rank, in forward order.
struct Program {
  ProgramPart part = ProgramPart::layer;
  Axes axes;
  std::int64_t first_expert = 0;  // number of this rank's first expert
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;
  std::uint64_t with_gradient = 0;  // Bit mask of the tensors that have a gradient.
  double workspace = 0;             // Bytes of workspace for its products.
  int batches = 1;                  // Number of copies of a micro-batch's ids and targets.
  // Weight gradients are written directly to the engine's buffers, and temporaries include the
  // incoming gradient.
  bool grads_in_place = false;

  // Returns whether backward computes the gradient of the tensor.
  bool has_gradient(TensorId tensor) const { return (with_gradient >> tensor & 1) != 0; }
};

// Returns the operations of one part.
Program layer_program(const ProgramInput& input, ProgramPart part);

// Calls f(operation, param, expert) for each parameter in the order of declaration. `expert`: index
// among the experts of this rank, each of which has all its parameters together; -1: none.
template <typename Each>
void each_param(const Program& program, const Each& f) {
  std::vector<std::pair<const Operation*, const Param*>> of_experts;
  const auto flush = [&] {
    if (of_experts.empty()) return;
    for (std::int64_t i = 0; i < of_experts.front().second->experts; ++i) {
      for (const auto& [op, param] : of_experts) f(*op, *param, i);
    }
    of_experts.clear();
  };
  for (const Operation& op : program.operations) {
    for (const Param& param : op.params) {
      if (param.experts > 0) {
        of_experts.emplace_back(&op, &param);
      } else {
        flush();
        f(op, param, std::int64_t{-1});
      }
    }
  }
  flush();
}

// All programs of a model on one rank.
struct Programs {
  Program embedding, layer, head;
  Program first_layer;  // Empty if it equals the next one.
  Program dense_layer;  // Empty if no layer, or each layer, has experts.

  // Returns the program of a layer, except the first after a frozen embedding.
  const Program& of_layer(const ModelShape& model, std::int64_t layer) const {
    const bool dense = model.experts.any() && !model.has_experts(layer);
    return dense && !dense_layer.operations.empty() ? dense_layer : this->layer;
  }
};
// Returns the programs of all parts.
Programs all_programs(const ProgramInput& input);
// Returns programs with the element size of the layout, which can differ from the element size that
// kernels compute with.
Programs programs_in_memory(const RunConfig& resolved);
// As above, for one rank of ep; -1: one with the most experts.
Programs programs_in_memory(const RunConfig& resolved, int ep_rank);

}  // namespace tessera::planner
