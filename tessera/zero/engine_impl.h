#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/zero/engine.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/reducer.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// The engine's rooms put together. Shared, so that hooks which outlive the engine find it gone.
struct Engine::Impl : std::enable_shared_from_this<Engine::Impl> {
  Impl(std::shared_ptr<torch::nn::Module> model, comm::Group group, Options options);

  void attach();  // hooks and observers
  void detach();
  void check_start();

  // What the observers and hooks report.
  void enter_forward(int unit, bool differentiable);
  void leave_forward(int unit, bool differentiable);
  void enter_backward(int unit);
  void leave_backward(int unit);
  void on_gradient(int param);

  void begin_step(int micro_batches);
  void backward(const at::Tensor& loss);
  void finish_reduction();
  StepInfo step(std::optional<double> lr);
  void release_if_done(int unit);
  void send_buffers();
  std::uint64_t hash();

  const std::shared_ptr<torch::nn::Module> model;
  const comm::Group group;
  const Options options;
  const ReducePolicy policy;
  Plan plan;
  Buffers buffers;
  Gatherer gatherer;
  Reducer reducer;
  std::unique_ptr<Update> update;

  struct UnitPass {      // a unit in the pass that is under way
    int entries = 0;     // in forward
    int leaves_due = 0;  // leave_backward() calls to come
    int params_due = 0;  // gradients to come
    int trainable = 0;
  };
  std::vector<UnitPass> passes;
  std::vector<std::shared_ptr<nn::UnitObserver>> observers;
  int depth = 0;  // of units entered and not left in forward
  bool in_backward = false;
  bool failed = false;  // a backward pass has thrown
  int no_sync = 0;

  // The step under way.
  bool stepping = false;
  int micro_batches = 1;
  int micro_batch = 0;     // passes that have ended
  bool unreduced = false;  // some gradient waits for the next reduction
  double scale = 1;        // of the loss
  at::Tensor loss_sum;
  Stopwatch optimizer_time;
};

}  // namespace tessera::zero
