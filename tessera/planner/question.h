#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/core/grad_compression.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/recompute.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/hardware.h"

namespace tessera::planner {

using tessera::name;
using tessera::parse_recompute;
using tessera::Recompute;

// How the scores of attention are made.
enum class Attention : std::uint8_t { fused, unfused };  // unfused keeps the matrix of scores

// [Note: whose run] Whose run it is: programs keep different things for backward. Megatron-LM's
// layers keep what Korthikanti et al. (2022) count, dropout's masks among them; Tessera's keep what
// planner/layer_program.h lists, and its state is padded: [Note: shards of a parameter].
// Plain PyTorch keeps much the same as Megatron-LM; how long it takes is its own: hardware.h.
enum class Software : std::uint8_t { megatron, tessera, pytorch };
// As the command line spells it.
std::string_view name(Software software);
std::string_view title(Software software);       // as it is written in a sentence
Software parse_software(std::string_view text);  // throws UsageError

// How stage 3 of Tessera brings parameters together: `alias` where ranks share memory.
enum class Gather : std::uint8_t { alias, copy };

// One training configuration: what the flags of `tessera plan`, a line of --questions and a row of
// --score say. 0 and nullopt stand for "choose".
struct Question {
  ModelShape model;
  double params = 0;  // of a model known by its size alone: then only state can be asked for
  std::int64_t seq = 0;

  Axes axes{{Axis::dp_shard, 0}};                // dp 0: what gpus or nodes leave, else 1
  int gpus = 0;                                  // all of them
  std::string order = std::string(kUsualOrder);  // innermost first: [Note: order of axes]
  bool sequence_parallel = false;
  // [Note: slices] Ranks along tp have the same result of a stage. Tessera's pass it on each for
  // itself; Megatron-LM's send a slice each, which those of the next stage gather along tp.
  std::optional<bool> slice_hops;  // settled: of Megatron-LM
  int zero = 0;
  StateLayout layout = parse_state_layout("bf16");
  std::optional<ReducePolicy> grad_reduce;
  GradCompression grad_compression = GradCompression::none;
  PowerSgd power_sgd;
  bool keep_params = false;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  double bucket_bytes = 0;  // 0: by the model, [Note: bucket size]

  std::int64_t micro_batch = 0;
  std::int64_t grad_accum = 0;
  std::int64_t global_batch = 0;
  Recompute recompute = Recompute::none;
  bool dropout = false;  // of the residual stream, which the fused operations of a GPU cannot
  std::optional<Attention> attention;  // settled: fused where the hardware has it
  // Settled: of Tessera on a CPU, else the hardware's; of a size alone left open, whoever runs it.
  std::optional<Software> software;
  std::optional<bool> gpu;       // settled: by the hardware
  std::optional<Gather> gather;  // settled: alias on a CPU's ranks of one host, else copy
  bool cuda_graph = true;        // Tessera on a GPU: a step is launched at once, if it can be
  bool prefetch = true;          // stage 3: the next unit is gathered while one is in use
  std::string schedule = "1f1b";
  int chunks = 0;
  std::string split = "even";  // of the layers into stages: see layers_of_stages
  // The vocabulary is padded to a multiple of this · tp. Settled: 128 for Tessera on a GPU, whose
  // products want aligned widths; else 1, not at all.
  int vocab_multiple = 0;

  Hardware hardware;
  int nodes = 0;
  int per_node = 0;

  // Nothing but the number of parameters is known.
  bool state_only() const { return params != 0; }

  // After settle(): how many micro-batches a step has, and how many devices there are.
  std::int64_t micros() const { return grad_accum; }
  int world() const { return static_cast<int>(axes.world()); }
  int dp() const { return axes.dp(); }
  // Ranks that shard state, and the number of groups of them: [Note: replicas] in core/axes.h.
  int shards() const { return axes.size(Axis::dp_shard); }
  int replicas() const { return axes.size(Axis::dp_replicate); }
  int tp() const { return axes.tp(); }
  int pp() const { return axes.pp(); }
  // Returns a copy at another ZeRO stage: at stage 0 without replicas, which shard nothing there.
  Question at_stage(int stage) const {
    Question other = *this;
    other.zero = stage;
    if (stage == 0) other.axes.set_given(Axis::dp_replicate, 1);
    return other;
  }
  ReducePolicy policy() const { return grad_reduce.value_or(default_reduce_policy(zero)); }
  // How gradients travel. PowerSGD is asked for where it can be; other stages, of which a plan
  // tells beside the one that was asked for, do without.
  bool power_sgd_asked() const { return grad_compression == GradCompression::powersgd; }
  GradCompression compression() const {
    const bool can = zero == 0 && policy() == ReducePolicy::last && layout.grad == 4;
    return power_sgd_asked() && !can ? GradCompression::none : grad_compression;
  }
  // Bytes of an element of the gradient on its way.
  int travel() const { return dp() > 1 ? traveling_grad(layout.grad, compression()) : layout.grad; }
  // Whether the host launches kernels one by one: [Note: host and device].
  bool launches() const { return !light_activations() || !cuda_graph || pp() > 1; }
  // Whether it is Tessera's fused operations of a GPU that run: [Note: fused operations].
  bool light_activations() const {
    return software == Software::tessera && gpu.value_or(false) && tp() == 1 && !dropout &&
           model.has_fused_block();
  }
};

// Who runs it, as asked for or else by the hardware.
Software software_of(const Question& question);
// Attention as asked for or else by the hardware. Throws UsageError for what it does not have.
Attention attention_of(const Question& question);

// Throws UsageError unless the ZeRO stage shards state, where there are replicas of the shards.
void check_replicas_at(int stage, const Axes& axes);

// Fills in what was left open (accumulation and global batch from each other, nodes, sequence
// length) and refuses what cannot be: throws UsageError naming the flag, the value and what would
// do. What is odd but possible passes.
Question settle(Question question);

// The part of a model that lies on one pipeline rank; embedding and head lie on the first and the
// last stage.
struct StageShare {
  std::int64_t layers = 0;
  bool embedding = false;
  bool head = false;
};
// The stage of the model (0 is first) that is chunk c on rank r, as the schedule lays them out.
int stage_of(const Question& settled, int rank, int chunk);
// Of chunk c on rank r of a schedule with `chunks` per rank: [rank][chunk].
std::vector<std::vector<StageShare>> stage_shares(const Question& settled);

}  // namespace tessera::planner
