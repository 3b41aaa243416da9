#include "tessera/parallel/step_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::parallel {

struct StepGraph::Impl {
  std::unique_ptr<at::cuda::CUDAGraph> graph;
};

const char* StepGraph::problem() { return nullptr; }

StepGraph::StepGraph() : impl_(std::make_unique<Impl>()) {}
StepGraph::~StepGraph() = default;

void StepGraph::record(c10::Device device, const std::function<void()>& f) {
  const c10::cuda::CUDAGuard guard(device);
  // Frees the cache of earlier steps: the graph allocates as much in its own pool.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Other threads (watchdogs) may query the device; the thread of backward only launches.
  graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    f();
  } catch (...) {
    try {
      graph->capture_end();
    } catch (...) {  // f invalidated the capture, which has ended anyway
    }
    throw;
  }
  graph->capture_end();
  impl_->graph = std::move(graph);
}

bool StepGraph::recorded() const { return impl_->graph != nullptr; }

void StepGraph::launch() { impl_->graph->replay(); }

}  // namespace tessera::parallel
