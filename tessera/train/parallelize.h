#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/data/source.h"
#include "tessera/models/language_model.h"
#include "tessera/pipeline/executor.h"
#include "tessera/zero/engine.h"

namespace tessera::train {

// How a model is spread over the ranks. dp is what tp · pp leaves of them.
struct ParallelOptions {
  int tp = 1;
  int pp = 1;
  bool sequence_parallel = false;
  bool overlap_tp = false;
  std::string schedule = "1f1b";
  int chunks = 1;
  std::string split = "even";  // of the layers: see planner::layers_of_stages
  int micro_batches = 1;
  nn::Recompute recompute = nn::Recompute::none;
  std::uint64_t seed = 0;  // of the parameters
  c10::Device device = c10::kCPU;
  zero::Options engine;  // its axes are filled in
};

// Throws UsageError, naming the flag, for what cannot be run so.
void check(const planner::ModelShape& shape, const ParallelOptions& options, int ranks);

// What one rank has: its parts of the model, one for each chunk of the pipeline; the engine that
// trains them; and the pipeline itself, if there is one.
class ParallelModel {
 public:
  // What a part of the model gives.
  enum class Want : std::uint8_t { hidden, loss, logits };

  // Collective over `world`.
  ParallelModel(const planner::ModelShape& shape, const ParallelOptions& options,
                const comm::Group& world);

  // One step's forward and backward passes, without the update. Collective over the mesh.
  void run(const std::vector<data::Batch>& batches);
  // Told what each pass and each wait for another stage took, for whoever measures; may be empty.
  using OnSpan = std::function<void(const pipeline::Span& span)>;
  void watch(OnSpan on_span) { on_span_ = std::move(on_span); }

  // The most likely next token after ids [1, T]; the same on all ranks of the mesh's replica.
  std::int64_t next_token(const at::Tensor& ids);

  // Collective: of the parameters of all parts, in the order of the ranks.
  std::uint64_t params_hash();

  zero::Engine& engine() { return *engine_; }
  const zero::Engine& engine() const { return *engine_; }
  const comm::Mesh& mesh() const { return mesh_; }
  // All groups that training talks over, by what they are for.
  std::vector<std::pair<const char*, comm::Group>> groups() const;
  const std::vector<ParamSpec>& specs() const { return specs_; }  // of this rank's parameters
  // The elements of one of them that no rank before this one has too, so that each counts once.
  const std::vector<Run>& counted(const std::string& param) const { return counted_.at(param); }
  // What this rank has sent so far along an axis; ties between stages count for pp.
  struct Sent {
    comm::TrafficCounts dp, tp, pp;
  };
  Sent sent() const;
  std::string describe() const;

 private:
  at::Tensor forward(int chunk, const at::Tensor& input, int micro);
  at::Tensor run_chunk(int chunk, const at::Tensor& x, const at::Tensor& targets, Want want);
  zero::ModelAxes axes();

  const planner::ModelShape shape_;
  const ParallelOptions options_;
  const comm::Mesh mesh_;
  const schedule::Schedule schedule_;                          // of one rank without a pipeline
  std::vector<std::shared_ptr<models::LanguageModel>> parts_;  // [chunk]
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<ParamSpec> specs_;
  std::map<std::string, std::vector<Run>> counted_;
  comm::Group model_, tied_;
  std::unique_ptr<zero::Engine> engine_;
  std::unique_ptr<pipeline::Executor> executor_;
  std::vector<data::Batch> batches_;  // of the step under way, on the device
  OnSpan on_span_;
};

}  // namespace tessera::train
