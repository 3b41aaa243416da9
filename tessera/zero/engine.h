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
#include "tessera/zero/options.h"

namespace tessera::zero {

// Result of one optimizer step. The same on every rank, except non_finite_index and
// non_finite_param.
struct StepInfo {
  double loss = 0;        // global mean: over tokens if begin() was given tokens, otherwise over
                          // micro-batches (0 if no rank of ModelAxes::group counts a loss)
  double grad_norm = 0;   // of the global gradient, before clipping
  bool skipped = false;   // gradient or loss was not finite, and nothing was updated
  double loss_scale = 1;  // layout fp16: factor of the loss; a step that overflows is skipped
  // First parameter, in the order of backward, whose gradient is not finite in this rank's shard:
  // its index in declaration order and its name. -1 and "" if there is none.
  int non_finite_index = -1;
  std::string non_finite_param = {};
};

// Handle of a step that may still run on a device. Cheap to copy. Only get() reports a failure.
class [[nodiscard]] PendingStep {
 public:
  // Implementation detail of the engine.
  class State {
   public:
    virtual ~State() = default;
    // Returns true if get() would not block.
    virtual bool ready() const = 0;
    // Waits for the result. Throws the error of a failed step.
    virtual StepInfo get() = 0;
  };
  PendingStep() = default;
  // Null denotes a step that was captured but has not run; get() then throws UsageError.
  explicit PendingStep(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Waits for the result. Throws Error if the gradient or the loss was not finite and
  // Options::on_non_finite is stop; nothing was updated in that case.
  StepInfo get() const;
  bool ready() const { return state_ == nullptr || state_->ready(); }

 private:
  std::shared_ptr<State> state_;
};

// Seconds spent by this rank since the last reset.
struct Times {
  double exposed = 0;    // waiting for communication
  double optimizer = 0;  // norm and update
};

// Parameters whose gradients are sent in one collective.
struct BucketInfo {
  std::vector<std::string> params;
  std::int64_t bytes = 0;          // as sent, padding included
  std::int64_t element_bytes = 0;  // size of one element as sent
};

// State of this rank's elements of a parameter that is not a tensor in memory: 8-bit moments, or
// state in a file. Valid while its engine exists.
struct StoredState {
  std::string state;
  at::ScalarType type = at::kFloat;  // of the elements as read and written, which is exact
  std::int64_t count = 0;
  // Copies elements [begin, begin + count).
  std::function<void(std::int64_t begin, std::int64_t count, std::byte* into)> read;
  // Overwrites them. Values that the format cannot represent are rounded to nearest. The first call
  // sets 8-bit moments to 0, because 16 elements share an exponent: write all elements.
  std::function<void(std::int64_t begin, std::int64_t count, const std::byte* from)> write;
};

// [Note: state] A rank's shard of one tensor of the training state, as a view of the engine's
// memory. `state` is "param" (the fp32 master copy if there is one), the optimizer's name of a
// state ("moment1", "moment2", "velocity"), or "buffer" for a buffer of the module.
struct StateShard {
  std::string param;
  std::string state;
  std::int64_t begin = 0;                    // offset in this rank's parameter, in memory order
  at::Tensor values;                         // flat; undefined if `stored` is not null
  std::vector<std::int64_t> sizes, strides;  // of this rank's parameter or buffer
  bool frozen = false;                       // a parameter that is not trained
  // The state with these elements at [stored_begin, stored_begin + stored_count).
  std::shared_ptr<const StoredState> stored = nullptr;
  std::int64_t stored_begin = 0, stored_count = 0;

  at::ScalarType type() const { return stored ? stored->type : values.scalar_type(); }
  std::int64_t count() const { return stored ? stored_count : values.numel(); }
  // Returns `values`, or a copy of the stored elements.
  at::Tensor read() const;
  // Overwrites the elements.
  void write(const at::Tensor& from) const;
};
// Part of the training state.
enum class StateScope : std::uint8_t {
  owned,  // elements that this rank saves: each is owned by exactly one rank of the group
  held,   // all elements that this rank stores: those it overwrites when it loads
  params  // the parameters of `owned`, without optimizer state and buffers
};
// Training progress.
struct StepCounts {
  std::int64_t steps = 0;
  std::map<std::string, std::int64_t> updates;  // number of updates of each trained parameter
  double loss_scale = 0;                        // layout fp16; 0: unknown
  std::int64_t good_steps = 0;                  // layout fp16: steps since the scale last changed
};

// Size of one step, if it differs from the default.
struct Begin {
  int micro_batches = 0;                        // per model chunk; 0: Options::micro_batches
  std::optional<double> tokens = std::nullopt;  // of this rank in all its micro-batches; may be 0
};

// Settings that replace those of Options for one optimizer step. All ranks pass the same values.
struct StepOptions {
  std::optional<double> lr = std::nullopt;            // learning rate of the optimizer
  std::optional<double> clip_norm = std::nullopt;     // Options::clip_norm; 0 disables clipping
  std::optional<double> weight_decay = std::nullopt;  // of the optimizer; for Muon, of both rules
  // ParamPolicy::lr_scale, by the name of the parameter. Null keeps the policy's values.
  std::function<double(const std::string& param)> lr_scale = nullptr;
};

class Engine;
class EngineRecovery;  // engine_recovery.h
class EnginePipeline;  // these four: engine_of_part.h
struct DataGroups;
struct EngineOptions;
struct ModelAxes;

// [Note: captured steps] Interface for steps in CUDA graphs. On a stream that is being captured,
// begin(), forwards, backward() and start_step() record their work in the graph; that start_step()
// returns an empty PendingStep. Values that change from step to step are read from device memory,
// which prepare() fills. For each step, on one stream:
//   engine.graphs().prepare({.tokens = …}, {.lr = lr});
//   graph.replay();
//   pending = engine.graphs().replayed();
// Steps that are not captured may run in between. A parameter that had a gradient when the step was
// captured counts as having one in every replay. Valid while the engine exists.
class EngineGraphs {
 public:
  // Made by Engine::graphs().
  explicit EngineGraphs(Engine& engine) : engine_(engine) {}
  // Returns the reason that steps of this engine cannot be captured; "" if they can.
  std::string problem() const;
  // Sets the arguments of begin() and step() for the next replay. Call it before each replay.
  void prepare(const Begin& begin, const StepOptions& options = {});
  // Returns the step of the last replay. Call it after each replay.
  PendingStep replayed();

 private:
  Engine& engine_;
};

// Data-parallel training of one model.
//
// [Note: stages] The stage selects which of {optimizer state, gradients, parameters} are sharded
// over ranks: 0 none, 1 the first, 2 the first two, 3 all. With the same ReducePolicy, the
// parameters after a step have the same bits for every stage, bucket size and overlap setting.
//
// [Note: frozen parameters] Parameters with requires_grad() == false when the engine is made. They
// have the layout's type, but no gradient, master copy or optimizer state. They are not reduced,
// and norms, clipping and decay ignore them. Stages 0 to 2 keep them whole, stage 3 shards and
// gathers them with their units. The set is fixed: if one of them requires a gradient later,
// backward() and step() throw UsageError. A trained parameter may be frozen and unfrozen; while
// frozen it counts as a parameter that no rank used.
//
// Most programs use DataParallel below, which knows the model's type. Programs call Engine,
// pipeline executors call EnginePipeline, and code that captures CUDA graphs calls EngineGraphs.
//
// Not thread-safe: use an engine from one thread at a time. backward() and step() throw UsageError
// if another thread is inside one of them. Different engines may run on different threads if they
// share no groups.
class Engine {
  struct Impl;
  friend class EnginePipeline;
  friend class EngineGraphs;
  friend class EngineRecovery;

 public:
  // Collective. Takes over the parameters of `model`: they become views of the engine's buffers,
  // with the values of rank 0, or of Options::initial if they have no memory. Buffers are broadcast
  // too. The model must outlive the engine's use.
  Engine(std::shared_ptr<torch::nn::Module> model, comm::Group group, Options options = {});
  // The same over the data-parallel axes of a mesh. dp_replicate > 1 selects hybrid sharding, in
  // which stages 1 to 3 shard within each replica ([Note: data groups]).
  Engine(std::shared_ptr<torch::nn::Module> model, const comm::Mesh& mesh, Options options = {});
  // Makes the engine for one part of a model that is cut over ranks ([Note: model axes]), for
  // ParallelModel.
  static Engine of_part(std::shared_ptr<torch::nn::Module> model, DataGroups groups,
                        Options options, ModelAxes axes);
  ~Engine();
  // A moved-from engine may only be assigned to or destroyed.
  Engine(Engine&& other) noexcept;
  Engine& operator=(Engine&& other) noexcept;

  // Starts a step whose micro-batches differ in number or weight from the default. With tokens,
  // backward() takes the *sum* of the losses over the tokens of a micro-batch, and the gradient is
  // that of the mean over all tokens of all ranks. Collective if tokens are given: pass them on all
  // ranks or on none.
  void begin(const Begin& begin);

  // Returns the observer of the root unit. Run the model's forward under it:
  // nn::observed(engine.root(), f, inputs…). Stages 1 to 3 require this, because it waits for or
  // gathers the parameters.
  const std::shared_ptr<nn::UnitObserver>& root() const;

  // Runs backward from a scalar loss: the mean over this micro-batch, or the sum if begin() was
  // given tokens. Throws UsageError if the loss has no graph, or if another thread is in backward()
  // or step() of this engine.
  void backward(const at::Tensor& loss);
  // Runs backward from any output with its gradient. A gradient computed from a loss of this
  // engine's global batch is already scaled.
  void backward(const at::Tensor& output, const at::Tensor& gradient);

  // Scope in which backward() only accumulates; the next backward() after it, or step(), reduces.
  // All ranks must run the same micro-batches within it.
  class NoSync {
   public:
    // Affects this engine alone, until it is destroyed.
    explicit NoSync(Engine& engine);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<Impl> impl_;  // the engine may be moved within the scope
  };

  // Computes the norm, clips, updates, and gathers the new parameters. `lr` replaces the learning
  // rate of the optimizer. Throws UsageError if no rank ran a backward pass, or if settings of the
  // step differ between ranks.
  StepInfo step(std::optional<double> lr = std::nullopt);
  // The same with other settings for this step: step({.lr = 0.1, .clip_norm = 1}).
  StepInfo step(const StepOptions& options);

  // [Note: steps on a device] Asynchronous step(): step(lr) is start_step(lr).get(). If kernels for
  // the device are built in and the optimizer is elementwise, the whole step runs there (norm,
  // clipping, the decision to skip, counting of updates), and the host only enqueues work on the
  // current stream. Otherwise the step is complete when this returns or throws.
  PendingStep start_step(std::optional<double> lr = std::nullopt);
  // The same with other settings for this step.
  PendingStep start_step(const StepOptions& options);

  // Waits until the gradients are reduced, without updating. At stage 0, which keeps them whole,
  // `.grad` can then be read. discard() drops the step.
  void finish_reduction();
  // Collective; call it between the last backward() of a step and step(). Returns the whole
  // gradient of every trained parameter, by name, on every rank: the values that the step uses.
  // They are means over micro-batches and ranks (over tokens if begin() was given tokens), before
  // clipping and without the fp16 loss scale; zeros for a parameter without a gradient. The tensors
  // are copies. For tests, statistics and small models.
  std::vector<std::pair<std::string, at::Tensor>> full_gradients();
  // Drops the gradients and micro-batches of the current step. Call it on all ranks.
  void discard();

  // Waits until the parameters are complete. Required at stages 1 and 2 before they are read
  // outside forward. (At stage 0 they are always complete, at stage 3 never.)
  void synchronize();

  // Collective, between two steps. Loads the parameters and buffers of `from` by name, at every
  // stage and in every layout; the master copy gets the values before rounding. Optimizer state is
  // kept.
  //   Net loaded;
  //   torch::load(loaded, path);
  //   train.load_parameters(*loaded);
  // All ranks get the values of rank 0; the other ranks may pass the model itself. With
  // broadcast_start = false every rank must pass the same values. If `from` is the model itself,
  // parameters that were replaced by set_data() or torch::load() are taken over; until then
  // forward, backward() and step() throw. At stages 0 to 2 this also takes over writes through
  // Tensor::data(), which the engine cannot detect.
  void load_parameters(const torch::nn::Module& from);

  // Collective. Returns the full fp32 (master) value of every parameter, by name, on every rank.
  // For tests, samples and small models.
  std::vector<std::pair<std::string, at::Tensor>> full_parameters();
  // Collective. Returns a hash of the bits of all parameters as the model reads them; equal on all
  // ranks.
  std::uint64_t params_hash();

  // Returns the state between two steps, in declaration order. StateScope::held is for writing: it
  // is collective, and throws UsageError during a step. Call it before each series of writes: until
  // it returns, other ranks may still read the shards in a forward pass.
  std::vector<StateShard> state(StateScope scope);
  // Returns the names of the frozen parameters, in the same order.
  std::vector<std::string> frozen_params() const;
  StepCounts progress() const;
  // Collective. Continues training after state(StateScope::held) was overwritten.
  void resume(const StepCounts& progress);

  // Interface for pipelines.
  EnginePipeline pipeline();
  // Interface for steps in CUDA graphs.
  EngineGraphs graphs();

  const Options& options() const;
  // Position of this engine's model in a model that is cut over ranks.
  const ModelAxes& model_axes() const;
  const comm::Group& group() const;
  // Ranks that own one copy of the state, and ranks that own the same shard.
  const DataGroups& data_groups() const;
  std::int64_t steps() const;
  Times times() const;
  // Sets times() back to 0.
  void reset_times();
  // Bytes of the parameters and gradients as sent, padding included: inputs of the traffic
  // formulas. With a reduce_hook, the gradients that it gets.
  std::int64_t traveling_param_bytes() const;
  std::int64_t traveling_grad_bytes() const;
  // Returns the gradient buckets in the order in which backward sends them.
  std::vector<BucketInfo> buckets() const;
  // Returns a summary, "7 units, 12 buckets …", with the cost of a model without units.
  std::string describe() const;

 private:
  Engine(std::shared_ptr<torch::nn::Module> model, DataGroups groups, EngineOptions options);

  std::shared_ptr<Impl> impl_;
};

// A model together with its engine. An ordinary program needs only these lines:
//   tessera::DataParallel train(model, world, {.stage = 3});
//   train.backward(loss_function(train(x), y));
//   train.step();
template <typename M>
class DataParallel : public Engine {
 public:
  // `model`: a module holder, such as torch::nn::Linear or a type made by TORCH_MODULE.
  DataParallel(M model, comm::Group group, Options options = {})
      : Engine(model.ptr(), std::move(group), std::move(options)), model_(std::move(model)) {}
  // Over the data-parallel axes of a mesh, such as Mesh(world, "dp=8,dp_replicate=2").
  DataParallel(M model, const comm::Mesh& mesh, Options options = {})
      : Engine(model.ptr(), mesh, std::move(options)), model_(std::move(model)) {}

  // Runs the model's forward under the engine. Do not call model()->forward() in training.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return nn::observed(
        root(), [&](auto&&... in) { return model_->forward(std::forward<decltype(in)>(in)...); },
        std::forward<Args>(args)...);
  }
  // Returns the model, to name, print or save it. The engine owns its parameters.
  M& model() { return model_; }

 private:
  M model_;
};

}  // namespace tessera::zero

namespace tessera {
using zero::DataParallel;
}
