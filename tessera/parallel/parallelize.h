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
#include "tessera/parallel/initial.h"
#include "tessera/parallel/layer.h"
#include "tessera/zero/engine.h"

namespace tessera {

namespace pipeline {
struct Span;
}

// A step on a GPU as one CUDA graph, [Note: graphs] in step_graph.h: where it can be, always (an
// error says why it cannot), never.
enum class Graphs : std::uint8_t { automatic, always, never };

// How a model is spread over the ranks, and trained.
struct ParallelOptions {
  bool sequence_parallel = false;  // the tensor-parallel ranks share the sequence too
  bool overlap_tp = false;         // multiply while they talk

  std::string schedule = "1f1b";  // of the pipeline: schedule::names()
  int model_chunks = 0;           // stages on each rank, where the schedule interleaves them; 0: 2
  std::vector<int> split = {};    // how many layers each stage has; empty: by their costs
  int micro_batches = 1;

  nn::Recompute recompute = nn::Recompute::none;
  // In steps, not in predict(): [Note: dropout].
  double dropout = 0, attention_dropout = 0, adapter_dropout = 0;
  // Steps between two checks that tensor-parallel ranks have the same inputs and the same values of
  // the parameters that each has whole. The first two steps are checked too. 0: never. -1: every
  // 100 steps on a CPU; on a GPU only the first two, because a check makes the host wait.
  int check_replicas = -1;
  std::uint64_t seed = 0;                   // of the parameters, and of what is dropped
  InitialValues initial = initial_default;  // of each
  StoredValues stored = {};                 // instead, of those that it has
  c10::Device device = c10::kCPU;
  // For a dry run of a pipeline, whose other stages are not there: a tensor of the shape and type
  // of what a stage sends for a micro-batch. Its device and values do not matter.
  at::Tensor dry_boundary = {};
  Graphs graphs = Graphs::automatic;
  zero::Options engine = {};  // stage, layout, optimizer, …
};

// The input of the first layer and the targets of the last, for one micro-batch. A rank needs only
// what its stages take.
struct MicroBatch {
  at::Tensor input;
  at::Tensor targets;
  // [Note: pass]: int32 [B, T] as in nn::Pass, undefined where a row is one document.
  at::Tensor document_starts = {};
  // Number of row 0 in its step's global batch, which chooses what is dropped. Without a value
  // micro-batches are numbered by replica and then in their order, so that each drops other
  // elements, and the same ones on every mesh with micro-batches of this size.
  std::optional<std::uint64_t> first_sample = std::nullopt;
  // In place of `input`, for a first layer that takes several tensors: [Note: layers].
  std::vector<at::Tensor> inputs = {};
};

// What one rank has of a model that is cut over a mesh: its chunks, the engine that trains them,
// and the pipeline, if there is one.
class ParallelModel {
 public:
  // Collective over the mesh. `layers` is the same on all ranks.
  ParallelModel(std::vector<Layer> layers, comm::Mesh mesh, ParallelOptions options = {});
  ParallelModel(ParallelModel&&) noexcept;
  ParallelModel& operator=(ParallelModel&&) noexcept;
  ~ParallelModel();

  // One step of the optimizer, from as many micro-batches as the options say. Their losses are
  // means, as is the one that comes back, which is the same on all ranks. Collective.
  // `options`: settings that replace those of ParallelOptions::engine in this step.
  zero::StepInfo step(const std::vector<MicroBatch>& batches,
                      const zero::StepOptions& options = {});
  // The same without waiting for what it was like: PendingStep::get() tells. On a GPU the host then
  // prepares the next step while this one runs, and steps that repeat themselves become a graph.
  struct StepNumbers {
    std::optional<double> lr = std::nullopt;      // in place of the optimizer's
    std::optional<double> tokens = std::nullopt;  // as in zero::Begin: losses are sums then
    std::uint64_t step = 0;                       // its number: what is dropped in it
    // As in zero::StepOptions.
    std::optional<double> clip_norm = std::nullopt, weight_decay = std::nullopt;
    std::function<double(const std::string& param)> lr_scale = nullptr;
  };
  // `numbers`: what changes from step to step.
  zero::PendingStep start_step(const std::vector<MicroBatch>& batches, const StepNumbers& numbers);
  // Are steps launched as a graph by now? And what speaks against it: "" if nothing does.
  bool graphed() const;
  std::string graph_problem() const;
  // Its forward and backward passes alone; engine().begin() before and engine().step() after it.
  void run(const std::vector<MicroBatch>& batches, std::uint64_t step = 0);
  // Loss of each micro-batch, on every rank of the replica, without gradients, with the layers in
  // evaluation mode (Module::eval()) meanwhile. Any number of micro-batches, of any shapes: the
  // stages of a pipeline work on different ones at the same time. Collective over the replica,
  // whose ranks all pass as many.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches);
  // The same with what `finish` makes of the last layer and its input in place of the loss. Targets
  // may be undefined.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches, const Finish& finish);
  // The same for a last layer that takes several tensors.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches,
                                   const FinishList& finish);
  // evaluate() of one micro-batch.
  at::Tensor predict(const at::Tensor& input, const Finish& finish);

  // For what it alone can: norms, state, times. Steps go through this class.
  zero::Engine& engine();
  const zero::Engine& engine() const;
  const comm::Mesh& mesh() const;
  const ParallelOptions& options() const;
  // This rank's parameters, as they are in the whole model.
  const std::vector<ParamSpec>& specs() const;
  // The elements of one of them that no rank before this one has too, so that each counts once.
  const std::vector<Run>& counted(const std::string& param) const;
  // Collective: a hash of the parameters of all ranks of the replica, in their order.
  std::uint64_t params_hash();

  // All groups that training talks over, by what they are for.
  std::vector<std::pair<const char*, comm::Group>> groups() const;
  // Traffic of this rank so far along each axis. Sums of tied parameters count for pp.
  using Sent = PerAxis<comm::TrafficCounts>;
  Sent sent() const;
  // Told what each pass and each wait for another stage took, for whoever measures; may be empty.
  void watch(std::function<void(const pipeline::Span& span)> on_span);
  std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
