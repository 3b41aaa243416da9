#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/step_graph.h"

namespace tessera::parallel {

// Runs steps one by one at first, and as a graph once they have shown that they repeat themselves.
class GraphedSteps {
 public:
  using Batches = std::vector<MicroBatch>;
  // One step as it is, with batches that may be on the host.
  using Step = std::function<zero::PendingStep(const Batches&)>;

  // `groups`: all that a step talks over. What it sent when it was recorded it sends at every
  // launch. `problem`: what is known to speak against a graph.
  GraphedSteps(c10::Device device, bool pipelined, zero::Engine& engine,
               std::vector<comm::Group> groups, std::string problem = "");

  zero::PendingStep step(const zero::Begin& begin, const zero::StepOptions& options,
                         const Batches& batches, const Step& now);
  bool recorded() const { return graph_.recorded(); }
  // Why there is and will be no graph; "" if nothing is known to speak against it.
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
  int alike_ = 0;    // steps in a row with batches of these shapes
  Batches batches_;  // on the device: what the graph reads
  StepGraph graph_;
  std::vector<comm::Group> groups_;
  std::vector<comm::TrafficCounts> sent_;  // by each of them, in one step
};

}  // namespace tessera::parallel
