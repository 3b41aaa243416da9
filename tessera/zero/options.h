#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/param_spec.h"
#include "tessera/core/run_options.h"
#include "tessera/core/state_layout.h"
#include "tessera/kernels/rules.h"

namespace tessera::memory {
class Ledger;
}

namespace tessera::zero {

using rules::AdamW;
using rules::Lion;
using rules::Muon;
using rules::SGD;

// Factory of an elementwise optimizer of torch::optim. It is called once, with flat shards of the
// parameters: one group for each distinct decay and lr_scale of the policies below.
using TorchOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::optim::OptimizerParamGroup>)>;

// Optimizer: one of zero:: with its settings, or a factory for one of torch::optim.
using Optimizer = rules::Join<rules::Named, std::variant<TorchOptimizer>>::type;

// Settings of one parameter, chosen by its name and shape. (It may have no values yet.)
struct ParamPolicy {
  bool decay = true;       // apply weight decay
  double lr_scale = 1;     // factor of the learning rate
  bool keep_fp32 = false;  // do not cast it in a 16-bit layout
  // Use the elementwise rule of optimizers that otherwise work on whole matrices (Muon).
  bool elementwise = false;
};
// Decays all parameters except vectors, such as norms and biases.
ParamPolicy default_policy(const std::string& name, const at::Tensor& param);

// Method of gathering a unit's parameters at stage 3. `alias` requires ranks that share memory: the
// unit is stored in one segment mapped by all ranks, and gathering it synchronizes without a copy.
enum class Gather : std::uint8_t { automatic, alias, copy };

// Action if the gradient or the loss is not finite: throw Error, or skip the step.
enum class OnNonFinite : std::uint8_t { stop, skip };

// [Note: initial values] Initial values of parameters without memory (nn::unallocated). The
// function writes elements [begin, begin + out.numel()) of this rank's parameter `name`, in memory
// order, into `out`: flat, fp32, on the CPU (or see on_device). Every rank must give the same value
// for an element. The engine requests only the elements that a rank keeps, unit by unit, so that no
// rank ever holds the whole model.
struct InitialSource {
  // Function that writes a range of one parameter.
  using Write =
      std::function<void(const std::string& name, std::int64_t begin, const at::Tensor& out)>;

  InitialSource() = default;
  // Implicit, so that any such function converts to a source.
  template <typename F>
  InitialSource(F&& f)  // NOLINT: implicit
      requires std::constructible_from<Write, F&&> : write(std::forward<F>(f)) {}
  // Returns true if there is a source.
  explicit operator bool() const { return static_cast<bool>(write); }

  Write write;
  // `out` may be on the device of the parameters; `write` then enqueues on its current stream.
  bool on_device = false;
  // Returns true for parameters of which the source has only this rank's shard, with values already
  // consistent between ranks. Other elements are gathered from the other ranks. Null: none.
  std::function<bool(const std::string& name)> own_shard_only;
};

// Gradients of one bucket, for a ReduceHook. The tensors are views of the engine's memory, the same
// in every step.
struct GradBucket {
  // Gradient of one parameter.
  struct Param {
    std::string name;
    at::Tensor grad;  // view of GradBucket::grads in the shape of the parameter
  };
  int index = 0;      // in Engine::buckets()
  bool last = false;  // the hook has been called for all other buckets of this step
  std::string label;  // for comm::Call::label; the same on every rank
  // Flat and contiguous, of the type of the layout's gradients. Each parameter is followed by
  // padding, which the engine ignores.
  at::Tensor grads;
  std::vector<Param> params;
};

// Sums that a hook has started to compute: a collective, or a function that the engine calls when
// it needs them. A default-constructed PendingSums is complete.
using PendingSums = std::variant<comm::Work, std::function<void()>>;

// [Note: reduce hooks] Function that replaces the reduction of gradients over the data-parallel
// ranks, like a communication hook of PyTorch's DDP. This one does what the engine does without:
//   options.reduce_hook = [](const GradBucket& bucket, const Group& data) -> PendingSums {
//     return data.all_reduce(bucket.grads, {.label = bucket.label});
//   };
// On completion, bucket.grads must hold the sum over all ranks of `data`, with the same bits on
// every rank. The engine divides the loss before backward, by the numbers of ranks and
// micro-batches or by the number of tokens, so this sum is the mean gradient. In layout fp16 it
// also has the factor of the loss scale. A gradient that a rank did not compute is zero.
//
// The engine calls the hook once for each bucket and step, in the same order on all ranks: in the
// last backward() of the step, as soon as the gradients of the bucket are complete, or at its end
// without overlap_grad_reduce. A rank that does not run that backward() calls it in step(). The
// thread is the one that computes the gradients: the caller's on the CPU, autograd's on a GPU, with
// the stream of backward as the current stream. The engine completes all sums in the order of
// Engine::buckets() in step(), finish_reduction(), full_gradients() or discard(), on the calling
// thread. Hook and function may both use `data`.
//
// An exception ends the call of the engine, and its message names the bucket. Then leave, and the
// other ranks throw PeerError instead of waiting; or call discard() on all ranks, which repeats the
// call that failed.
using ReduceHook = std::function<PendingSums(const GradBucket& bucket, const comm::Group& data)>;

// Options of an Engine.
struct Options {
  int stage = 0;                                // [Note: stages] in engine.h
  StateLayout layout = state_layouts().back();  // fp32
  Optimizer optimizer = AdamW{};
  // Format of AdamW's moments. Other formats than fp32 are for models on the CPU.
  OptimizerState optimizer_state = OptimizerState::fp32;
  // State in files, for AdamW, SGD and Lion and models on the CPU. Results have the same bits.
  Offload offload = {};
  std::function<ParamPolicy(const std::string&, const at::Tensor&)> policy = default_policy;

  int micro_batches = 1;  // backward calls per step, unless begin() overrides it
  std::optional<ReducePolicy> reduce = std::nullopt;  // nullopt: default_reduce_policy(stage)
  double clip_norm = 0;  // maximum global norm of the gradient; 0 disables clipping
  OnNonFinite on_non_finite = OnNonFinite::stop;

  std::int64_t bucket_bytes = 0;    // 0: chosen by the model, [Note: bucket size]
  bool overlap_grad_reduce = true;  // reduce during backward
  // [Note: gradient compression] in core/run_options.h. A group of one rank sends nothing and
  // compresses nothing.
  GradCompression grad_compression = GradCompression::none;
  // Replaces the reduction of gradients, [Note: reduce hooks]. A group of one rank does not call
  // it. Requires ReducePolicy::last (the default at stages 0 and 1) and one replica. Excludes
  // grad_compression and captured steps. At stages 1 to 3 it also sums the elements that other
  // ranks own, which the engine's own reduce-scatter does not.
  ReduceHook reduce_hook = nullptr;
  // Stages 1 and 2: gather new parameters during the next forward. Until synchronize(), reading one
  // outside forward is an error. LibTorch before 2.13 cannot report this error, so step() waits.
  bool overlap_param_gather = true;
  bool prefetch = true;      // stage 3: gather one unit ahead
  bool keep_params = false;  // stage 3: keep units gathered between forward and backward
  // keep_params by the name of a unit ("blocks.3"; the root is "root"). Null: keep_params for all.
  std::function<bool(const std::string& unit)> keep_unit = nullptr;
  Gather gather = Gather::automatic;
  // [Note: cast inputs] Casts floating-point arguments of the model, or of a unit, to bf16 (or
  // fp16) if the layout stores that unit's parameters (for the root: any parameter) in that type,
  // like FSDP2's cast_forward_inputs. Outputs are not cast; gradients of inputs have the input's
  // type.
  bool cast_inputs = true;
  bool broadcast_start = true;    // use rank 0's values; false: all ranks must have equal values
  InitialSource initial = {};     // values of parameters without memory, [Note: initial values]
  bool broadcast_buffers = true;  // copy buffers (running means) from rank 0 after every step
  std::uint64_t seed = 0;         // for stochastic rounding

  std::shared_ptr<memory::Ledger> ledger = nullptr;  // null: memory::current_ledger()
};

}  // namespace tessera::zero
