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
  void end_step();
  void backward(const at::Tensor& output, const at::Tensor& gradient, const Pass& pass);
  void finish_pass(int section);
  bool next_pass_reduces(int section);  // throws if the section has had all its passes
  void finish_reduction();
  void add_tied();
  void sum_over_model(StepInfo& info, double& squares);
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

  // A unit in the passes that are under way. A pipeline runs several forwards before the backward
  // of the first: what is counted here is the most of any.
  struct UnitPass {
    int entering = 0, leaving = 0;  // in the forward under way: entries, leave_backward() to come
    int entries = 0, leaves = 0;    // in a forward
    int leaves_due = 0;             // leave_backward() calls to come in the backward under way
    int params_due = 0;             // gradients to come, likewise
    int trainable = 0;
  };
  void end_forward(bool rooted);
  std::vector<UnitPass> passes;
  std::vector<std::shared_ptr<nn::UnitObserver>> observers;
  int depth = 0;        // of units entered and not left in forward
  bool beside = false;  // the last forward did not run through root()
  bool in_backward = false;
  bool failed = false;  // a backward pass has thrown
  int no_sync = 0;

  // The step under way.
  bool stepping = false;
  int micro_batches = 1;
  struct Section {
    int passes = 0;          // that have ended
    bool unreduced = false;  // some gradient waits for the next reduction
  };
  std::vector<Section> sections;
  double scale = 1;  // of the loss
  at::Tensor loss_sum;
  Stopwatch optimizer_time;
};

}  // namespace tessera::zero
