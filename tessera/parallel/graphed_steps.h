#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/step_graph.h"

namespace tessera::parallel {

// Runner of steps: without a graph at first, and as a CUDA graph once steps repeat the same shapes.
class GraphedSteps {
 public:
  using Batches = std::vector<MicroBatch>;
  // Runs one step without a graph. The batches may be on the host.
  using Step = std::function<zero::PendingStep(const Batches&)>;

  // `groups`: all groups that a step uses. The traffic of the recorded step is counted at every
  // launch. `problem`: known reason against a graph, or "".
  GraphedSteps(c10::Device device, bool pipelined, zero::Engine& engine,
               std::vector<comm::Group> groups, std::string problem = "");

  zero::PendingStep step(const zero::Begin& begin, const zero::StepOptions& options,
                         const Batches& batches, const Step& now);
  bool recorded() const { return graph_.recorded(); }
  // Returns the reason that steps cannot run as a graph; "" if none is known.
  const std::string& problem() const { return problem_; }

 private:
  bool fits(const Batches& batches) const;
  void copy_in(const Batches& batches);
  zero::PendingStep launch(const zero::Begin& begin, const zero::StepOptions& options,
                           const Batches& batches);
  zero::PendingStep one_by_one(const Batches& batches, const Step& now);
  zero::PendingStep record(const zero::Begin& begin, const zero::StepOptions& options,
                           const Batches& batches, const Step& now);

  const c10::Device device_;
  zero::Engine& engine_;
  const std::optional<c10::Stream> stream_;
  std::string problem_;
  int alike_ = 0;    // consecutive steps with batches of these shapes
  Batches batches_;  // inputs of the graph, on the device
  StepGraph graph_;
  std::vector<comm::Group> groups_;
  std::vector<comm::TrafficCounts> sent_;  // traffic of one step, by group
};

}  // namespace tessera::parallel
