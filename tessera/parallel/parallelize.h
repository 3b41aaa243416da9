#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/core/axes.h"
#include "tessera/core/experts.h"
#include "tessera/core/param_spec.h"
#include "tessera/core/run_options.h"
#include "tessera/parallel/layer.h"
#include "tessera/zero/engine.h"

namespace tessera {

namespace pipeline {
struct Span;
}

// Initial values of a parameter: random numbers that depend only on the seed, its name and the
// element, so that every mesh starts with the same values, or the values of its constructor.
struct Initial {
  double mean = 0;
  double deviation = 0;  // standard deviation of a normal distribution
  double uniform = 0;    // if not 0: uniform distribution over mean ± uniform instead
  bool keep = false;     // keep the constructor's values, of the first rank that has it
};
// Function that returns the initial values by a parameter's name and shape.
using InitialValues = std::function<Initial(const ParamSpec&)>;

// Stored initial values, such as those in files, for the parameters that `has` returns true for.
// `read` writes elements of the whole parameter to `into`, at the offsets Run::local; every rank
// requests only the elements that it keeps.
struct StoredValues {
  std::function<bool(const ParamSpec&)> has;
  std::function<void(const ParamSpec&, const std::vector<Run>& runs, float* into)> read;
};
// Returns 0 for biases, 1 for other vectors, and a standard deviation of 0.02 for the rest.
Initial initial_default(const ParamSpec& spec);
// Keeps the values of the layers' constructors, for modules that initialize themselves.
Initial initial_kept(const ParamSpec& spec);

// Use of CUDA graphs for steps on a GPU, [Note: graphs] in step_graph.h: if possible, always
// (throws if it is not possible), never.
enum class Graphs : std::uint8_t { automatic, always, never };

// Options for distributing and training a model.
struct ParallelOptions {
  bool sequence_parallel = false;  // shard the sequence over the tensor-parallel ranks too
  bool overlap_tp = false;         // overlap tensor-parallel communication with matrix products
  // Attention of layers that use LayerContext::cp, along the axis cp: [Note: context layers].
  ContextKind context = ContextKind::automatic;

  std::string schedule = "1f1b";  // of the pipeline, one of schedule::names()
  int model_chunks = 0;           // stages per rank in interleaved schedules; 0: 2
  std::vector<int> split = {};    // number of layers of each stage; empty: balance their costs
  int micro_batches = 1;

  nn::Recompute recompute = nn::Recompute::none;
  // Rates of dropout in steps; evaluate() and predict() do not drop: [Note: dropout].
  double dropout = 0, attention_dropout = 0, adapter_dropout = 0;
  // Steps between two checks that tensor-parallel ranks have the same inputs and the same values of
  // replicated parameters. The first two steps are always checked. 0: never. -1: every 100 steps on
  // a CPU; on a GPU only the first two, because a check makes the host wait.
  int check_replicas = -1;
  std::uint64_t seed = 0;                   // for initial values and dropout
  InitialValues initial = initial_default;  // of each parameter
  StoredValues stored = {};                 // replaces `initial` for the parameters that it has
  c10::Device device = c10::kCPU;
  // For a dry run of a pipeline, whose other stages are simulated: a tensor with the shape and type
  // that a stage sends for a micro-batch. Its device and values are ignored.
  at::Tensor dry_boundary = {};
  Graphs graphs = Graphs::automatic;
  zero::Options engine = {};  // stage, layout, optimizer, …
};

// Input of the first layer and targets of the last layer, for one micro-batch. A rank needs only
// those that its stages use. Context-parallel ranks pass the same whole rows, and each takes its
// own tokens of them.
struct MicroBatch {
  at::Tensor input;
  at::Tensor targets;
  // [Note: pass]: int32 [B, T] as in nn::Pass; undefined if each row is one document.
  at::Tensor document_starts = {};
  // Number of row 0 in the global batch of its step, which selects the elements that dropout drops.
  // By default micro-batches are numbered by replica and then in their order, so that each drops
  // different elements, and the same ones on every mesh with micro-batches of this size.
  std::optional<std::uint64_t> first_sample = std::nullopt;
  // Replaces `input` for a first layer that takes several tensors: [Note: layers].
  std::vector<at::Tensor> inputs = {};
};

// Part of a model on one rank of a mesh: its layers, the engine that trains them, and the pipeline,
// if there is one. Not thread-safe: use a model from one thread at a time, as its engine.
class ParallelModel {
 public:
  // Collective over the mesh. `layers` must be the same on all ranks.
  ParallelModel(std::vector<Layer> layers, comm::Mesh mesh, ParallelOptions options = {});
  ParallelModel(ParallelModel&&) noexcept;
  ParallelModel& operator=(ParallelModel&&) noexcept;
  ~ParallelModel();

  // Collective. Runs one optimizer step with ParallelOptions::micro_batches micro-batches. Their
  // losses are means, and so is the result, which is the same on all ranks. `options`: settings
  // that replace those of ParallelOptions::engine in this step.
  zero::StepInfo step(const std::vector<MicroBatch>& batches,
                      const zero::StepOptions& options = {});
  // Values that change from step to step.
  struct StepNumbers {
    std::optional<double> lr = std::nullopt;  // replaces the optimizer's learning rate
    // As in zero::Begin: losses are then sums. With context parallelism, the tokens of whole rows.
    std::optional<double> tokens = std::nullopt;
    std::uint64_t step = 0;  // number of the step, which selects dropout
    // As in zero::StepOptions.
    std::optional<double> clip_norm = std::nullopt, weight_decay = std::nullopt;
    std::function<double(const std::string& param)> lr_scale = nullptr;
  };
  // Asynchronous step(). PendingStep::get() waits and returns the result. On a GPU the host can
  // prepare the next step while this one runs, and repeated steps become a CUDA graph.
  zero::PendingStep start_step(const std::vector<MicroBatch>& batches, const StepNumbers& numbers);
  // Returns true if steps are now launched as a graph.
  bool graphed() const;
  // Returns the reason that steps cannot run as a graph; "" if none is known.
  std::string graph_problem() const;
  // Runs only the forward and backward passes. Call engine().begin() before and engine().step()
  // after it.
  void run(const std::vector<MicroBatch>& batches, std::uint64_t step = 0);
  // Returns the loss of each micro-batch on every rank of the replica, without gradients, with the
  // layers in evaluation mode (Module::eval()). Any number of micro-batches, of any shapes:
  // pipeline stages work on different ones at the same time. Collective over the replica, whose
  // ranks must all pass the same number. With context parallelism, results are those of this rank's
  // tokens.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches);
  // The same with finish(last layer, its input) instead of the loss. Targets may be undefined.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches, const Finish& finish);
  // The same for a last layer that takes several tensors.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches,
                                   const FinishList& finish);
  // evaluate() of one micro-batch.
  at::Tensor predict(const at::Tensor& input, const Finish& finish);

  // Returns the engine, for norms, state and times. Call this class for steps.
  zero::Engine& engine();
  const zero::Engine& engine() const;
  const comm::Mesh& mesh() const;
  const ParallelOptions& options() const;
  // Returns this rank's parameters, as parts of the whole model.
  const std::vector<ParamSpec>& specs() const;
  // Returns the elements of a parameter that no earlier rank has, so that each element counts once.
  const std::vector<Run>& counted(const std::string& param) const;
  // Collective. Returns a hash of the parameters of all ranks of the replica, in rank order.
  std::uint64_t params_hash();

  // Collective, after a step that was not taken by step() or start_step(), but with run() and the
  // engine. Ends the step for the layers: moves the selection biases of experts.
  void end_step();
  // Collective. Returns the use of the experts since the last call, layer by layer.
  std::vector<ExpertLoad> take_expert_loads();

  // Returns all groups that training communicates over, with their purpose.
  std::vector<std::pair<const char*, comm::Group>> groups() const;
  // Returns the traffic of this rank so far along each axis. Sums of tied parameters count for pp.
  using Sent = PerAxis<comm::TrafficCounts>;
  Sent sent() const;
  // Sets a callback with the duration of each pass and each pipeline wait. May be null.
  void watch(std::function<void(const pipeline::Span& span)> on_span);
  std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
