#pragma once

#include <string_view>
#include <vector>

#include "tessera/core/lora.h"
#include "tessera/planner/layer_program.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {

// Linear layer: its full sizes, its sizes on this rank and its sharding. A column-parallel linear
// is sharded by its outputs. A row-parallel one is sharded by its inputs, so ranks sum their
// results.
struct Linear {
  std::string_view name;  // Name used by adapters.
  const char *weight, *bias;
  bool has_bias, row;
  std::int64_t in, out;
  double in_on_rank, out_on_rank;
  Few<ParamSpec::Segment, 3> segments = {};
  double temporary = 0, frees = 0;  // As in Operation. `frees` applies without recomputation.
  bool of_experts = false;          // Shared experts: sums and keeps its results with the experts'.
};

// Sizes of an MLP, or of the experts, on this rank: `width` hidden values of a row (`up`: before
// the activation), and `wide` of all its rows. `columns`: those in whole columns, as the peaks of
// backward count them.
struct MlpSizes {
  double width = 0, up = 0, wide = 0, columns = 0;
};

// Returns the sizes of an MLP of `width` hidden values for `rows` rows.
MlpSizes mlp_sizes(std::int64_t width, double rows, bool gated, int tp);
// Returns the rows that `own` experts of the busiest rank compute: [Note: operations of experts].
double routed_rows(const ProgramInput& in, double rows, std::int64_t own);

class ProgramBuilder {
 public:
  ProgramBuilder(const ProgramInput& input, ProgramPart part);

  void embedding();
  void layer();
  void head();
  Program take();

 private:
  // Adds a tensor of `elements` elements of `size` bytes each on this rank. `alike` tensors of this
  // size count as one.
  TensorId tensor(double elements, double size, int alike = 1);
  Operation& add(OpKind kind, const char* name, Few<TensorId, 2> reads, Few<TensorId, 2> writes) {
    Operation& op = program_.operations.emplace_back();
    op.kind = kind, op.name = name, op.reads = reads, op.writes = writes;
    return op;
  }
  // Megatron-LM and PyTorch keep activations as Korthikanti et al. (2022) count them: selective
  // recomputation drops only the attention scores.
  void keep(Operation& op, TensorId tensor, int when) const {
    const int always = kUnlessAgain | kSelective;
    op.keeps.push_back({tensor, static_cast<std::uint8_t>(ledger_ ? when : always)});
  }
  // Keeps a tensor that only the ledger of a run counts.
  void keep_held(Operation& op, TensorId tensor, int when) const {
    if (ledger_) keep(op, tensor, when);
  }
  void add_params(Operation& op, const Param& weight, const Param* bias) {
    op.trained = !frozen_;
    op.params.push_back(weight);
    if (bias != nullptr) op.params.push_back(*bias);
  }
  double share(const Operation& op) const {
    double elements = 0;
    for (const Param& param : op.params) {
      elements += param.share_on_rank(in.axes.size(Axis::tp)) * real(param.count());
    }
    return elements;
  }

  TensorId checkpoint();
  TensorId norm(const char* weight, const char* bias, TensorId x);
  TensorId norm_behind(const char* weight, const char* bias, TensorId x);
  TensorId linear(const Linear& spec, TensorId x, double outputs);
  TensorId head_norms(TensorId qkv);
  TensorId split_heads(TensorId qkv);
  TensorId exchange(const char* name, Sent sent, TensorId x, double width);
  TensorId repeat_keys(TensorId qkv);
  TensorId attention(TensorId heads);
  void ring(Operation& op, TensorId heads, double flops);
  double score_blocks() const;
  bool rings() const { return in.axes.size(Axis::cp) > 1 && in.cp_kind == ContextKind::ring; }
  bool exchanges() const {
    return in.axes.size(Axis::cp) > 1 && in.cp_kind == ContextKind::ulysses;
  }
  TensorId mlp(const char* fc, const char* fc_bias, const char* proj2, const char* proj2_bias,
               std::int64_t width, TensorId z, bool of_experts = false);
  TensorId activation(TensorId up, const MlpSizes& sizes);
  TensorId experts(TensorId z);
  TensorId route(TensorId z);
  TensorId dispatch(TensorId z);
  TensorId grouped(const char* name, std::int64_t in_width, std::int64_t out_width, bool row,
                   TensorId x);
  TensorId weighted_activation(TensorId up);
  double experts_temporary() const;
  TensorId combine(TensorId results, TensorId shared);
  TensorId shared_experts(TensorId z);
  void exchange_rows(Operation& op, Sent sent, TensorId of) const;
  bool has_experts() const;
  TensorId residual(TensorId x, TensorId branch, bool before_norm);
  void adapters(const Linear& spec, TensorId x, TensorId out);
  void fused_head(TensorId y);
  void cut(Operation& op, bool row, Sent sent, TensorId x, TensorId out) const;
  void gather_again(Operation& op, TensorId out) const;
  void sum_gradients(const char* name, Sent sent, double elements, double calls);
  void products_in_fp8(Operation& op, const Linear& spec) const;
  double product_temporary(double x, double dy, double weight) const;

  const ProgramInput& in;
  const ModelShape& m;
  const double e;  // Bytes per element.
  const bool ledger_, frozen_, cuts_sequence_;
  const bool adds_residual_;  // Products add the residual: [Note: fused operations].
  // Sizes on this rank. `tokens`: of a sequence. `own`: rows of its shard of them. `whole`:
  // elements of that shard. `exchanged_width`: queries, keys and values of a token that ulysses
  // exchanges.
  const double tokens, rows, h, heads, kv, vocab;
  const double context, qkv_width, exchanged_width, own, whole;
  const double accumulate_;  // Bytes moved to accumulate one element of a gradient.
  const ExpertRange own_experts_;
  // Rows that the experts of this rank compute, and hidden sizes.
  const double routed_;
  const MlpSizes expert_;
  std::vector<Adapter> adapters_;
  double shared_adapters_ = 0;  // Elements replicated on some but not all ranks.
  Program program_;
};

}  // namespace tessera::planner
