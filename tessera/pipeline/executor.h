#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/nn/deferred.h"
#include "tessera/pipeline/transfers.h"
#include "tessera/schedule/schedule.h"

namespace tessera::pipeline {

// One of the stages of the model that this rank holds.
struct Chunk {
  // `input` is the output of the previous stage. It is undefined on the first stage, which reads
  // its own data. The last stage returns the loss of the micro-batch, one number (such as the sum
  // over its tokens). Other stages return one tensor for the next stage, with the same shape in all
  // micro-batches of a step.
  std::function<at::Tensor(const at::Tensor& input, int micro)> forward;
  // Used instead of `forward` if stages return several tensors. On the first stage `input` is
  // empty. `differentiable` of the result is ignored: floating-point tensors that require a
  // gradient get one.
  std::function<Value(const Value& input, int micro)> forward_value = nullptr;
};

// Identifies a backward pass of a step.
struct Pass {
  int micro = 0;
  int chunk = 0;
  bool last_of_chunk = false;  // last pass of the chunk in this step
  bool last = false;           // last pass of this rank in this step
};

// Time of one action.
struct Span {
  schedule::Kind kind = schedule::Kind::forward;  // for a receive: the time spent waiting
  int micro = 0;
  int chunk = 0;
  std::chrono::steady_clock::time_point begin{}, end{};
};

struct Options {
  c10::Device device = c10::kCPU;  // device of the activations
  // For a simulated group: a tensor with the shape and type of the activations between stages.
  at::Tensor dry_boundary = {};
  int ahead = 1;  // receives posted per rank before they are needed; each costs a buffer

  // [Note: roots] Every backward starts from a scalar root. On the last stage that is the loss. On
  // other stages it is a zero whose backward returns the gradient received from the next stage and
  // ignores its own incoming gradient: a factor on the loss was already applied by the last stage.
  // So an engine that scales the loss works on every stage as it does without a pipeline. Default:
  // root.backward().
  std::function<void(const at::Tensor& root, const Pass& pass)> backward;
  // Must call `add`, which adds the deferred weight gradients of a pass; see [Note: deferral]. Lets
  // an engine act before and after. Default: add().
  std::function<void(const std::function<void()>& add, const Pass& pass)> backward_weight;
  // Called after each action, if set.
  std::function<void(const Span& span)> on_span;
};

// Losses of the micro-batches of a step, in order. The same on every rank of the pipeline.
struct Losses {
  std::vector<double> micro;
  double sum() const;
};

// Runs the actions of this rank in a pipeline schedule. Rank r of the group is rank r of the
// schedule. The activations of a micro-batch are freed as soon as its backward ends (or its weight
// gradients, if the schedule splits the backward).
class Executor {
 public:
  // Validates the schedule. Throws UsageError if the size of the group or the number of chunks does
  // not match it.
  Executor(schedule::Schedule schedule, comm::Group group, std::vector<Chunk> chunks,
           Options options = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Collective. Runs one step: all micro-batches forward and backward. Gradients accumulate in
  // `.grad`. If it throws, the executor cannot be used anymore.
  void run();
  // Collective. Returns the losses of the last step. Waits for the device and for the last stage,
  // which is why run() does not return them.
  Losses losses() const;

  const schedule::Schedule& schedule() const { return schedule_; }
  const schedule::Proof& proof() const { return proof_; }
  int stage(int chunk) const { return schedule_.stage(group_.rank(), chunk); }
  // Returns a summary of the schedule and, if it splits backward, of the deferred gradients.
  std::string describe() const;

 private:
  struct Gradient : torch::CustomClassHolder {  // result of the backward of a root
    std::vector<at::Tensor> values;
  };
  struct Live {  // state of a micro-batch in a chunk between forward and backward
    Value input;
    at::Tensor root;
    c10::intrusive_ptr<Gradient> gradient;
    c10::intrusive_ptr<nn::DeferredGradients> deferred;
  };
  void act(const schedule::Action& action);
  void forward(const schedule::Action& action);
  void backward(const schedule::Action& action);
  void backward_weight(const schedule::Action& action);
  Pass pass(const schedule::Action& action) const;
  Message message(const schedule::Action& action, bool up, bool in) const;
  bool is_last(int stage) const { return stage + 1 == schedule_.stage_count(); }

  schedule::Schedule schedule_;
  comm::Group group_;
  std::vector<Chunk> chunks_;
  Options options_;
  schedule::Proof proof_;
  Route route_;
  Transfers transfers_;
  bool defers_ = false;  // the schedule splits the backward
  // Last passes of a step: of those that start from roots, and of those of deferred weights.
  struct Ends {
    std::vector<int> micro;      // [chunk]: micro-batch of the last pass
    std::pair<int, int> last{};  // micro-batch and chunk of the last pass of all
  };
  Ends backward_ends_, weight_ends_;
  std::map<std::pair<int, int>, Live> live_;  // by micro-batch and chunk
  std::vector<at::Tensor> losses_;            // [micro], on the last stage
  std::int64_t deferred_ = -1;  // deferred weight gradients of the last step; -1: no step yet
  bool broken_ = false;
};

// Collective. Runs only the forward of micro-batches through all stages of `layout`. The stages
// work on different micro-batches at the same time. Shapes may differ between micro-batches.
// Returns the outputs of the last stage on the rank that has it, and an empty vector on the others.
std::vector<Value> run_forward(const schedule::Schedule& layout, const comm::Group& group,
                               const std::vector<Chunk>& chunks, int micros, c10::Device device);

}  // namespace tessera::pipeline
