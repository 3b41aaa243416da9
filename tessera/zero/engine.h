#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/nn/unit.h"
#include "tessera/zero/backward_pass.h"
#include "tessera/zero/data_groups.h"
#include "tessera/zero/model_axes.h"

namespace tessera::zero {

// What one step of the optimizer was like. The same on every rank.
struct StepInfo {
  double loss = 0;  // global mean: over tokens where begin() gave them, else over micro-batches
                    // (0 where no rank of ModelAxes::group counts one)
  double grad_norm = 0;   // of the global gradient, before clipping
  bool skipped = false;   // not finite, and Options::on_non_finite is skip
  double loss_scale = 1;  // layout fp16: what the loss was multiplied by; such steps are skipped
                          // where it was too much
  // First parameter, in the order of backward, whose gradient is not finite in this rank's shard:
  // its index in declaration order and its name. -1 and "" for none. Differs between ranks.
  int non_finite_index = -1;
  std::string non_finite_param = {};
};

// A step whose work may still be under way on a device. A small value: copy it, keep it. Only get()
// reports that it failed.
class [[nodiscard]] PendingStep {
 public:
  // Where the result comes from; an engine's own affair.
  class State {
   public:
    virtual ~State() = default;
    // Whether get() would return at once.
    virtual bool ready() const = 0;
    // Waits; throws what the step failed with.
    virtual StepInfo get() = 0;
  };
  PendingStep() = default;
  // Null: a step that was captured and has not run; get() refuses it.
  explicit PendingStep(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Waits until it is known how it went. Throws Error if something was not finite and
  // Options::on_non_finite is stop; nothing was updated then.
  StepInfo get() const;
  bool ready() const { return state_ == nullptr || state_->ready(); }

 private:
  std::shared_ptr<State> state_;
};

// Seconds of this rank since the last reset.
struct Times {
  double exposed = 0;    // waiting for communication
  double optimizer = 0;  // norm and update
};

// Parameters whose gradients travel in one message.
struct BucketInfo {
  std::vector<std::string> params;
  std::int64_t bytes = 0;          // as they travel, padding included
  std::int64_t element_bytes = 0;  // of each of its elements
};

// [Note: state] A rank's shard of one tensor of the training state, as a view of the engine's own
// memory. `state` is "param" (the fp32 master copy where there is one), what the optimizer calls
// its own ("moment1", "moment2", "velocity"), or "buffer" of the module.
struct StateShard {
  std::string param;
  std::string state;
  std::int64_t begin = 0;  // where it begins in this rank's parameter, in memory order
  at::Tensor values;       // flat
  std::vector<std::int64_t> sizes, strides;  // of this rank's parameter or buffer
  bool frozen = false;                       // a parameter that is not trained
};
// Which part of the state is asked for.
enum class StateScope : std::uint8_t {
  owned,  // each element on exactly one rank of the group: what this rank saves
  held,   // all that this rank keeps: what it wants when it loads
  params  // the parameters of `owned`, without optimizer state and buffers
};
// What PowerSGD keeps of a parameter between two steps, [Note: PowerSGD] in power_sgd.h, as views.
struct LeftOut {
  std::string param;
  at::Tensor error;                          // flat, in memory order: what this rank still owes
  at::Tensor next;                           // n × r, the same on all ranks of the group
  std::vector<std::int64_t> sizes, strides;  // of this rank's parameter
};
// How far training has come.
struct StepCounts {
  std::int64_t steps = 0;
  std::map<std::string, std::int64_t> updates;  // of each parameter that is trained
  double loss_scale = 0;                        // layout fp16; 0: not known
  std::int64_t good_steps = 0;                  // layout fp16: since the scale was changed
};

// How a step differs from the default.
struct Begin {
  int micro_batches = 0;                        // 0: Options::micro_batches; of each model chunk
  std::optional<double> tokens = std::nullopt;  // of this rank in all its micro-batches; may be 0
};

// Settings that replace those of Options for one optimizer step. All ranks give the same values.
struct StepOptions {
  std::optional<double> lr = std::nullopt;            // learning rate of the optimizer
  std::optional<double> clip_norm = std::nullopt;     // Options::clip_norm; 0 does not clip
  std::optional<double> weight_decay = std::nullopt;  // of the optimizer; for Muon, of both rules
  // ParamPolicy::lr_scale, by the name of the parameter. Null keeps the policy's values.
  std::function<double(const std::string& param)> lr_scale = nullptr;
};

class Engine;

// Passes of an engine as a pipeline runs them. Valid as long as its engine.
class EnginePipeline {
 public:
  // Made by Engine::pipeline().
  explicit EnginePipeline(Engine& engine) : engine_(engine) {}
  // Backward from any output, with its gradient; or from the loss if `gradient` is undefined.
  // Gradients that come from a loss of this engine's global batch are scaled already.
  void backward(const at::Tensor& output, const at::Tensor& gradient, const BackwardPass& pass);
  // Takes in the gradients that were added to `.grad` of the model chunk since its deferred pass.
  void finish_pass(int model_chunk);

 private:
  Engine& engine_;
};

// [Note: captured steps] A step on a device can be captured into a CUDA graph: begin(), forwards,
// backward() and start_step() on a stream that is being captured do what they always do, but put
// everything into the graph; the result of that start_step() is empty. Values that change from step
// to step are read from device memory, which prepare() fills. So, for each step:
//   engine.graphs().prepare({.tokens = …}, {.lr = lr});
//   graph.replay();
//   pending = engine.graphs().replayed();
// all on one stream. Steps in between that are not captured are allowed. Parameters that had a
// gradient when the step was captured have one in every replay. Valid as long as its engine.
class EngineGraphs {
 public:
  // Made by Engine::graphs().
  explicit EngineGraphs(Engine& engine) : engine_(engine) {}
  // Returns the reason that steps of this engine cannot be captured; "" if they can.
  std::string problem() const;
  // Before each replay: the arguments that begin() and step() would get.
  void prepare(const Begin& begin, const StepOptions& options = {});
  // After each replay: its step.
  PendingStep replayed();

 private:
  Engine& engine_;
};

// [Note: stages] One engine; a stage says what of {optimizer state, gradients, parameters} each
// rank keeps only its shard of: 0 nothing, 1 the first, 2 the first two, 3 all. Whatever the stage,
// bucket size or overlap, the parameters after a step have the same bits.
//
// [Note: frozen parameters] Those with requires_grad() == false when the engine is made. They have
// the layout's type, and neither gradient nor master copy nor optimizer state; nothing of them is
// reduced, and norms, clipping and decay do not see them. Stages 0 to 2 keep them whole, stage 3
// shards and gathers them with their units. Which they are does not change while the engine lives:
// one that requires a gradient later is an error in backward() and step(). A trained parameter may
// be frozen and unfrozen: meanwhile it is a parameter that no rank used.
//
// Most programs use DataParallel below, which knows the model's type. Programs call Engine,
// pipeline executors call EnginePipeline, and code that captures CUDA graphs calls EngineGraphs.
//
// Not thread-safe: one thread at a time uses an engine, and backward() and step() refuse a second
// one. Several engines of one process may be used by a thread each if their groups are their own.
class Engine {
  struct Impl;
  friend class EnginePipeline;
  friend class EngineGraphs;

 public:
  // Collective. Takes over the parameters of `model`: they become views of the engine's buffers,
  // with the values of rank 0, or those of Options::initial where they have no memory. Buffers are
  // broadcast too. The model must outlive the engine's use.
  Engine(std::shared_ptr<torch::nn::Module> model, comm::Group group, Options options = {});
  // The same over the data-parallel axes of a mesh: dp_replicate > 1 is hybrid sharding, in which
  // stages 1 to 3 shard inside each replica ([Note: data groups]).
  Engine(std::shared_ptr<torch::nn::Module> model, const comm::Mesh& mesh, Options options = {});
  // The same for one part of a model that is cut over ranks ([Note: model axes]), as ParallelModel
  // makes it.
  static Engine of_part(std::shared_ptr<torch::nn::Module> model, DataGroups groups,
                        Options options, ModelAxes axes);
  ~Engine();
  // Movable: whoever has it has the engine, and what was moved from may only be assigned to or
  // destroyed.
  Engine(Engine&& other) noexcept;
  Engine& operator=(Engine&& other) noexcept;

  // Starts a step whose micro-batches differ in number or weight from the default: with tokens
  // given, backward() takes the *sum* of the losses over a micro-batch's tokens, and the gradient
  // is that of the mean over all tokens of all ranks. Collective if tokens are given (on all ranks
  // or on none).
  void begin(const Begin& begin);

  // The model's forward runs as the root unit: nn::observed(engine.root(), f, inputs…). It must run
  // so at stages 1 to 3, where parameters come in time only for those who announce themselves.
  const std::shared_ptr<nn::UnitObserver>& root() const;

  // Backward through the engine. `loss`: a scalar, the mean over this micro-batch, or the sum where
  // begin() gave tokens. Throws UsageError if it has no graph, or if another thread is in
  // backward() or step() of this engine.
  void backward(const at::Tensor& loss);
  // Backward from any output, with its gradient. A gradient that comes from a loss of this engine's
  // global batch is scaled already.
  void backward(const at::Tensor& output, const at::Tensor& gradient);

  // Within the scope backward() only accumulates; the first backward after it, or step(), reduces.
  // All ranks put the same micro-batches into it, and run them.
  class NoSync {
   public:
    // Until it goes, of this engine alone.
    explicit NoSync(Engine& engine);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<Impl> impl_;  // the engine may move meanwhile
  };

  // Norm, clipping, update, and the gather of new parameters. `lr` replaces the optimizer's. Throws
  // UsageError if no rank ran a backward pass, or if settings of the step differ between ranks.
  StepInfo step(std::optional<double> lr = std::nullopt);
  // The same with other settings that change from step to step: step({.lr = 0.1, .clip_norm = 1}).
  StepInfo step(const StepOptions& options);

  // [Note: steps on a device] The same without waiting for its result: start_step(lr).get(). Where
  // kernels for the device are built in, and the optimizer treats every element alone, all of a
  // step is decided there (norm, clipping, whether it is skipped, updates counted), and the host
  // only puts work on the current stream. Elsewhere the step is over when this returns (or
  // throws).
  PendingStep start_step(std::optional<double> lr = std::nullopt);
  // The same with other settings that change from step to step.
  PendingStep start_step(const StepOptions& options);

  // Waits until the gradients are reduced, without updating anything: `.grad` can be looked at
  // where it is kept whole (stage 0). discard() then forgets the step under way.
  void finish_reduction();
  // Collective, between the last backward() of a step and step(): the whole gradient of every
  // trained parameter, by name, on every rank. These are the values that the step takes: the mean
  // over micro-batches and ranks (over tokens where begin() gave them), before clipping, without
  // fp16's loss scale. A parameter without a gradient has zeros. Copies; for tests, statistics and
  // small models.
  std::vector<std::pair<std::string, at::Tensor>> full_gradients();
  // Forgets gradients and micro-batches of a step that was not taken.
  void discard();

  // Waits until the parameters are complete: before they are read outside forward at stages 1 and
  // 2, which is an error otherwise. (At stage 0 they always are, at stage 3 never.)
  void synchronize();

  // Collective, between two steps: the parameters and buffers of `from` by their names, at every
  // stage and in every layout; the master copy takes them before they are rounded. Optimizer state
  // stays.
  //   Net loaded;
  //   torch::load(loaded, path);
  //   train.load_parameters(*loaded);
  // All ranks get rank 0's values; the others may pass the model itself. With broadcast_start =
  // false every rank gives the same. Given the model itself it takes over parameters that were
  // replaced by set_data() or torch::load(), which forward, backward() and step() refuse until
  // then, and, at stages 0 to 2, writes through Tensor::data(), of which the engine is not told.
  void load_parameters(const torch::nn::Module& from);

  // Collective: the full fp32 (master) value of every parameter, by name, on every rank; for tests,
  // samples and small models.
  std::vector<std::pair<std::string, at::Tensor>> full_parameters();
  // Collective: a hash of the bits of all parameters as the model reads them, equal on all ranks.
  std::uint64_t params_hash();

  // All state between two steps, in declaration order. What is held is there to be overwritten:
  // UsageError while a step is under way.
  std::vector<StateShard> state(StateScope scope);
  // Names of the frozen parameters, in the same order.
  std::vector<std::string> frozen_params() const;
  // What compression left out of the gradients so far, of the parameters whose gradients travel in
  // low rank. Owned: nothing before the first compressed step.
  std::vector<LeftOut> left_out(StateScope scope);
  StepCounts progress() const;
  // Collective: state(StateScope::held) has been overwritten, and training goes on from there.
  // Nothing is left out of gradients then: whoever has left_out() writes it afterwards.
  void resume(const StepCounts& progress);

  // Interface for pipelines.
  EnginePipeline pipeline();
  // Interface for steps in CUDA graphs.
  EngineGraphs graphs();

  const Options& options() const;
  // Place of this engine's model in one that is cut over ranks.
  const ModelAxes& model_axes() const;
  const comm::Group& group() const;
  // Ranks that own one copy of the state, and ranks that own the same shard.
  const DataGroups& data_groups() const;
  std::int64_t steps() const;
  Times times() const;
  // Times start again from 0.
  void reset_times();
  // Bytes of the parameters and gradients as they travel, padding included: what the formulas of
  // traffic take.
  std::int64_t traveling_param_bytes() const;
  std::int64_t traveling_grad_bytes() const;
  // What travels together in backward, in the order in which it leaves.
  std::vector<BucketInfo> buckets() const;
  // "7 units, 12 buckets …", and what a model without units costs.
  std::string describe() const;

 private:
  Engine(std::shared_ptr<torch::nn::Module> model, DataGroups groups, EngineOptions options);

  std::shared_ptr<Impl> impl_;
};

// A model together with its engine: the handful of lines that an ordinary program changes.
//   tessera::DataParallel train(model, world, {.stage = 3});
//   train.backward(loss_function(train(x), y));
//   train.step();
template <typename M>
class DataParallel : public Engine {
 public:
  // `model`: a module holder, such as torch::nn::Linear or what TORCH_MODULE makes.
  DataParallel(M model, comm::Group group, Options options = {})
      : Engine(model.ptr(), std::move(group), std::move(options)), model_(std::move(model)) {}
  // Over the data-parallel axes of a mesh, such as Mesh(world, "dp=8,dp_replicate=2").
  DataParallel(M model, const comm::Mesh& mesh, Options options = {})
      : Engine(model.ptr(), mesh, std::move(options)), model_(std::move(model)) {}

  // The model's forward, as the engine must see it: never call model()->forward() in training.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return nn::observed(
        root(), [&](auto&&... in) { return model_->forward(std::forward<decltype(in)>(in)...); },
        std::forward<Args>(args)...);
  }
  // To name, print or save; its parameters belong to the engine.
  M& model() { return model_; }

 private:
  M model_;
};

}  // namespace tessera::zero

namespace tessera {
using zero::DataParallel;
}
