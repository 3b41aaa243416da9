// StepGraph without a CUDA LibTorch, or without GPU kernels.

#include "tessera/core/errors.h"
#include "tessera/parallel/step_graph.h"

namespace tessera::parallel {

struct StepGraph::Impl {};

const char* StepGraph::problem() {
  return "this Tessera was built without a CUDA LibTorch or without nvcc";
}

StepGraph::StepGraph() = default;
StepGraph::~StepGraph() = default;
void StepGraph::record(c10::Device, const std::function<void()>&) { throw Error(problem()); }
bool StepGraph::recorded() const { return false; }
void StepGraph::launch() { throw Error(problem()); }

}  // namespace tessera::parallel
