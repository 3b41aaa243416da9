#include "tessera/parallel/graphed_steps.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <mutex>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"

namespace tessera::parallel {
namespace {

// Steps that run without a graph first, in which libraries choose algorithms and allocate memory.
constexpr int kWarmUpSteps = 2;

bool alike(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

at::Tensor buffer_for(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() ? at::empty(tensor.sizes(), tensor.options().device(device)) : tensor;
}

// Returns the state of the device's random number generator.
at::Tensor random_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

std::string problem_of(bool pipelined, zero::Engine& engine) {
  if (const char* problem = StepGraph::problem()) return problem;
  if (pipelined) return "pipeline stages wait for each other on the host";
  return engine.graphs().problem();
}

}  // namespace

GraphedSteps::GraphedSteps(c10::Device device, bool pipelined, zero::Engine& engine,
                           std::vector<comm::Group> groups, std::string problem)
    : device_(device),
      engine_(engine),
      stream_(own_stream(device)),
      problem_(problem.empty() ? problem_of(pipelined, engine) : std::move(problem)),
      groups_(std::move(groups)) {}

bool GraphedSteps::fits(const Batches& batches) const {
  if (batches.size() != batches_.size()) return false;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (!alike(batches[i].input, batches_[i].input)) return false;
    if (!alike(batches[i].targets, batches_[i].targets)) return false;
    if (batches[i].inputs.size() != batches_[i].inputs.size()) return false;
    for (std::size_t k = 0; k < batches[i].inputs.size(); ++k) {
      if (!alike(batches[i].inputs[k], batches_[i].inputs[k])) return false;
    }
  }
  return true;
}

void GraphedSteps::copy_in(const Batches& batches) {
  const auto copy = [](const at::Tensor& to, const at::Tensor& from) {
    if (to.defined()) to.copy_(from, /*non_blocking=*/true);
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    copy(batches_[i].input, batches[i].input);
    copy(batches_[i].targets, batches[i].targets);
    for (std::size_t k = 0; k < batches[i].inputs.size(); ++k) {
      copy(batches_[i].inputs[k], batches[i].inputs[k]);
    }
  }
}

zero::PendingStep GraphedSteps::one_by_one(const Batches& batches, const Step& now) {
  if (!problem_.empty()) return now(batches);
  const at::Tensor before = random_state(device_);
  zero::PendingStep step = now(batches);
  if (!at::equal(before, random_state(device_))) {
    problem_ =
        "the model draws random numbers on the device, which would be the same in every replay";
  }
  return step;
}

zero::PendingStep GraphedSteps::step(const zero::Begin& begin, const zero::StepOptions& options,
                                     const Batches& batches, const Step& now) {
  if (!problem_.empty()) return now(batches);
  const OtherStream other(stream_);
  if (!fits(batches)) {
    // The shapes have changed. A recorded graph keeps its shapes.
    if (graph_.recorded()) return now(batches);
    batches_.clear();
    for (const MicroBatch& batch : batches) {
      batches_.push_back({buffer_for(batch.input, device_), buffer_for(batch.targets, device_)});
      for (const at::Tensor& input : batch.inputs) {
        batches_.back().inputs.push_back(buffer_for(input, device_));
      }
    }
    alike_ = 0;
  }
  if (graph_.recorded()) {
    for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].add_traffic(sent_[i]);
    return launch(begin, options, batches);
  }
  if (alike_++ < kWarmUpSteps) return one_by_one(batches, now);
  return record(begin, options, batches, now);
}

zero::PendingStep GraphedSteps::record(const zero::Begin& begin, const zero::StepOptions& options,
                                       const Batches& batches, const Step& now) {
  for (const comm::Group& group : groups_) sent_.push_back(group.traffic());
  try {
    graph_.record(device_, [&] { static_cast<void>(now(batches_)); });
  } catch (const std::exception& error) {
    problem_ = str("recording failed: ", message_of(error));
    Logger().warn(str("Steps run without a CUDA graph: ", problem_));
    engine_.discard();
    return now(batches);
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) sent_[i] = groups_[i].traffic() - sent_[i];
  return launch(begin, options, batches);
}

zero::PendingStep GraphedSteps::launch(const zero::Begin& begin, const zero::StepOptions& options,
                                       const Batches& batches) {
  engine_.graphs().prepare(begin, options);
  copy_in(batches);
  graph_.launch();
  return engine_.graphs().replayed();
}

}  // namespace tessera::parallel
