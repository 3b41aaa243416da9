#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/zero/engine.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/reducer.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// The plan, once all ranks have turned out to start alike where they should; throws otherwise.
Plan same_on_all_ranks(Plan plan, const torch::nn::Module& model, const comm::Group& group,
                       const Options& options);
// Their names, shapes and types alone, before anything is sent that depends on them.
void check_same_model(const torch::nn::Module& model, const Plan& plan, const comm::Group& group,
                      const Options& options);

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
  void backward(const at::Tensor& output, const at::Tensor& gradient, const BackwardPass& pass);
  void finish_pass(int model_chunk);
  bool next_pass_reduces(int model_chunk);  // throws if the model chunk has had all its passes
  void finish_reduction();
  void add_tied();
  void end_failed_pass();
  void sum_over_model(StepInfo& info, double& squares);
  StepInfo step(std::optional<double> lr);
  void reshard_if_done(int unit);
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

  // A unit in the passes that are under way. A backward is that of all forwards since the last one
  // (Count::sum), or of one of them, as in a pipeline, where it is the most in any (Count::most).
  struct Count {
    int now = 0;  // in the forward under way
    int sum = 0, most = 0;
    void end() {
      sum += now;
      most = std::max(most, std::exchange(now, 0));
    }
  };
  struct UnitPass {
    Count entries, leaves;  // leaves: leave_backward() calls to come
    int uses = 0;           // entries of the forwards whose backward is under way
    int leaves_due = 0;     // leave_backward() calls to come in it
    int params_due = 0;     // gradients to come, likewise
    int trainable = 0;
  };
  std::vector<UnitPass> passes;
  std::vector<std::shared_ptr<nn::UnitObserver>> observers;
  int depth = 0;  // of units entered and not left in forward
  bool in_backward = false;
  int deferred = 0;     // passes that finish_pass() has not ended yet
  bool failed = false;  // a backward pass has thrown
  int no_sync = 0;

  // The step under way.
  bool stepping = false;
  int micro_batches = 1;
  struct ModelChunk {
    int passes = 0;          // that have ended
    bool unreduced = false;  // some gradient waits for the next reduction
  };
  std::vector<ModelChunk> model_chunks;
  double scale = 1;  // of the loss, once the tokens of all ranks are known
  comm::Work tokens_known;
  at::Tensor tokens;  // of all ranks; undefined where nobody gave them
  void settle_scale();
  bool tied_added = false;
  BackwardPass pass_under_way;
  bool pass_reduces = false;
  at::Tensor loss_sum;
  Stopwatch optimizer_time;
};

}  // namespace tessera::zero
