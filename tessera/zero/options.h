#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/grad_compression.h"
#include "tessera/core/param_spec.h"
#include "tessera/core/state_layout.h"
#include "tessera/kernels/rules.h"
#include "tessera/memory/ledger.h"
#include "tessera/zero/initial_source.h"

namespace tessera::zero {

// AdamW, SGD, Lion, Muon: kernels/rules.h.
using namespace rules;

// Any optimizer of torch::optim that treats every element alone: it is given flat shards of the
// parameters, as many groups as the policies below make. The function is called once.
using TorchOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::optim::OptimizerParamGroup>)>;

// One of ours with its settings, or a function that makes one of torch's.
using Optimizer = rules::Join<rules::Named, std::variant<TorchOptimizer>>::type;

// How one parameter is treated, by its name and its shape. (It may have no values yet.)
struct ParamPolicy {
  bool decay = true;       // weight decay applies to it
  double lr_scale = 1;     // its learning rate relative to the others'
  bool keep_fp32 = false;  // a layout of 16 bits does not cast it
  // Optimizers that treat matrices as a whole treat it element by element.
  bool elementwise = false;
};
// Everything decays but vectors: norms and biases.
ParamPolicy default_policy(const std::string& name, const at::Tensor& param);

// How a unit's parameters come together at stage 3. `alias` needs ranks that share memory: the
// unit lies in one segment that all have mapped, and gathering it is an agreement, not a copy.
enum class Gather : std::uint8_t { automatic, alias, copy };

// What happens when the gradients are not finite.
enum class OnNonFinite : std::uint8_t { stop, skip };

// What an Engine is told; all but the stage can be left alone.
struct Options {
  int stage = 0;                                // [Note: stages] in engine.h
  StateLayout layout = state_layouts().back();  // fp32
  Optimizer optimizer = AdamW{};
  std::function<ParamPolicy(const std::string&, const at::Tensor&)> policy = default_policy;

  int micro_batches = 1;  // backward calls per step, unless begin() says otherwise
  std::optional<ReducePolicy> reduce = std::nullopt;  // default_reduce_policy(stage)
  double clip_norm = 0;  // largest global norm of the gradient; 0 does not clip
  OnNonFinite on_non_finite = OnNonFinite::stop;

  std::int64_t bucket_bytes = 0;    // 0: by the model, [Note: bucket size]
  bool overlap_grad_reduce = true;  // reduce while backward goes on
  // [Note: gradient compression] in core/grad_compression.h. A group of one rank sends nothing, and
  // compresses nothing. PowerSGD: stage 0, fp32 gradients, reduced once a step.
  GradCompression grad_compression = GradCompression::none;
  PowerSgd power_sgd = {};
  // Stages 1, 2: gather new parameters while the next forward goes on; until synchronize(), reading
  // one outside forward is an error. Before LibTorch 2.13, which cannot say so, step() waits.
  bool overlap_param_gather = true;
  bool prefetch = true;      // stage 3: gather one unit ahead
  bool keep_params = false;  // stage 3: keep them between forward and backward
  // The same by the name of a unit ("blocks.3"; the root is "root"). Null: keep_params for all.
  std::function<bool(const std::string& unit)> keep_unit = nullptr;
  Gather gather = Gather::automatic;
  // [Note: cast inputs] Floating-point tensors that enter the model, or a unit, as arguments are
  // cast to bf16 (or fp16) where the layout keeps that unit's parameters so (the root: any
  // parameter), as FSDP2's cast_forward_inputs does. Outputs stay as they are; gradients flow back
  // in the input's own type.
  bool cast_inputs = true;
  bool broadcast_start = true;    // of rank 0's parameters; false: all ranks have loaded the same
  InitialSource initial = {};     // of parameters without memory, [Note: initial values]
  bool broadcast_buffers = true;  // buffers (running means) follow rank 0 after every step
  std::uint64_t seed = 0;         // of stochastic rounding

  std::shared_ptr<memory::Ledger> ledger = nullptr;  // null: memory::current_ledger()
};

}  // namespace tessera::zero
