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

// One of the pieces of the model that this rank holds.
struct Chunk {
  // `input` is what the stage before gave; undefined on the first stage, which knows where its data
  // is. The last stage gives the loss of the micro-batch, one number (say, the sum over its
  // tokens); the others give one tensor for the next stage, of the same shape in all micro-batches
  // of a step.
  std::function<at::Tensor(const at::Tensor& input, int micro)> forward;
  // In place of forward, where stages give several tensors. On the first stage `input` is empty.
  // `differentiable` of the result is ignored: floating-point tensors that require a gradient get
  // one.
  std::function<Value(const Value& input, int micro)> forward_value = nullptr;
};

// Which backward pass of a step this is.
struct Pass {
  int micro = 0;
  int chunk = 0;
  bool last_of_chunk = false;  // in this step, on this rank
  bool last = false;
};

struct Span {
  schedule::Kind kind = schedule::Kind::forward;  // of a receive: the time waited for it
  int micro = 0;
  int chunk = 0;
  std::chrono::steady_clock::time_point begin{}, end{};
};

struct Options {
  c10::Device device = c10::kCPU;  // where the activations live
  // In a simulated group: a tensor of the shape and type of what a stage sends for a micro-batch.
  at::Tensor dry_boundary = {};
  int ahead = 1;  // receives under way from each rank before they are needed; costs as many buffers

  // [Note: roots] Every backward starts from one number. On the last stage that is the loss. On the
  // others it is a zero whose backward gives the gradient that came from the next stage, whatever
  // factor it gets itself: a factor on the loss has been applied by then. So an engine that scales
  // losses and ends passes works on every stage as it does alone. Default: root.backward().
  std::function<void(const at::Tensor& root, const Pass& pass)> backward;
  // Runs `add`, which adds the deferred weight gradients of a pass; see [Note: deferral]. For those
  // who must know before and after. Default: add().
  std::function<void(const std::function<void()>& add, const Pass& pass)> backward_weight;
  std::function<void(const Span& span)> on_span;
};

// The losses of a step's micro-batches, in order; the same on every rank of the pipeline.
struct Losses {
  std::vector<double> micro;
  double sum() const;
};

// Runs a pipeline schedule: this rank's part of it, over a group whose rank r is rank r of the
// schedule. What a micro-batch keeps for backward is dropped as soon as its backward has ended (the
// weights' part of it, where the schedule takes the two apart).
class Executor {
 public:
  // Validates the schedule. Throws UsageError unless group and chunks are as many as it says.
  Executor(schedule::Schedule schedule, comm::Group group, std::vector<Chunk> chunks,
           Options options = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One step: all micro-batches forward and backward; gradients add up in `.grad`. All ranks of the
  // group call it. If it throws, the executor is of no more use.
  void run();
  // Those of the last step. All ranks of the group call it; it waits for the device and for the
  // last stage, so a step does not do it by itself.
  Losses losses() const;

  const schedule::Schedule& schedule() const { return schedule_; }
  const schedule::Proof& proof() const { return proof_; }
  int stage(int chunk) const { return schedule_.stage(group_.rank(), chunk); }
  // A few words on what runs here; says what is not deferred, where a schedule wants it to be.
  std::string describe() const;

 private:
  struct Gradient : torch::CustomClassHolder {  // what a root's backward gives
    std::vector<at::Tensor> values;
  };
  struct Live {  // of one micro-batch in one chunk, between forward and backward
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
  bool defers_ = false;  // the schedule takes backward apart
  // Where the passes of a step end: those that start from roots, and those of deferred weights.
  struct Ends {
    std::vector<int> micro;      // [chunk]: whose pass comes last
    std::pair<int, int> last{};  // the micro-batch and chunk of the last of all
  };
  Ends backward_ends_, weight_ends_;
  std::map<std::pair<int, int>, Live> live_;  // by micro-batch and chunk
  std::vector<at::Tensor> losses_;            // [micro], on the last stage
  std::int64_t deferred_ = -1;  // weight gradients put off in the last step; -1: there was none yet
  bool broken_ = false;
};

// Runs micro-batches forward alone, through all stages of a schedule's layout; the stages work on
// different micro-batches at the same time. Shapes may differ between micro-batches. Returns what
// the last stage gave for each, on the rank that has it; nothing on the others. All ranks of the
// group call it.
std::vector<Value> run_forward(const schedule::Schedule& layout, const comm::Group& group,
                               const std::vector<Chunk>& chunks, int micros, c10::Device device);

}  // namespace tessera::pipeline
