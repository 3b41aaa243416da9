#include "tessera/pipeline/executor.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"

namespace tessera::pipeline {

using schedule::Action;
using schedule::Kind;

namespace {

// Scalar from which the backward of a stage without loss starts; see [Note: roots]. It keeps the
// graph of the output of the stage, but not the output itself.
template <typename Gradient>
struct Root : torch::autograd::Function<Root<Gradient>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::TensorList /*outputs*/,
                            c10::intrusive_ptr<Gradient> gradient, at::Device device) {
    context->saved_data["gradient"] = c10::IValue::make_capsule(std::move(gradient));
    return at::zeros({}, at::device(device).dtype(at::kFloat));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    const auto capsule = context->saved_data["gradient"].toCapsule();
    torch::autograd::variable_list result =
        std::exchange(static_cast<Gradient*>(capsule.get())->values, {});
    result.resize(result.size() + 2);  // for the arguments `gradient` and `device`
    return result;
  }
};

Value call(const Chunk& chunk, const Value& input, int micro) {
  if (chunk.forward_value) return chunk.forward_value(input, micro);
  return {{chunk.forward(input.tensors.empty() ? at::Tensor() : input.tensors[0], micro)}};
}

std::string text_of(const Value& value) {
  std::vector<std::string> tensors;
  for (const at::Tensor& tensor : value.tensors) {
    tensors.push_back(tensor.defined()
                          ? tessera::str(tensor.sizes(), " ", c10::toString(tensor.scalar_type()))
                          : "an undefined tensor");
  }
  return value.list ? str("(", join(tensors, ", "), ")") : join(tensors, ", ");
}

// Throws UsageError for an output of a stage that cannot be trained.
void check_output(const Value& output, int stage, int stages) {
  const bool last = stage + 1 == stages;
  const auto floating = [](const at::Tensor& tensor) {
    return at::isFloatingType(tensor.scalar_type());
  };
  bool valid = !output.tensors.empty() && (output.list || output.tensors.size() == 1);
  for (const at::Tensor& tensor : output.tensors) valid = valid && tensor.defined();
  if (!output.list || last) valid = valid && !output.list && floating(output.tensors[0]);
  if (last) valid = valid && output.tensors[0].numel() == 1;
  if (valid) return;
  throw UsageError(str("stage ", stage, " of ", stages, " returned ", text_of(output),
                       "; must return ",
                       last ? "the loss, one floating-point number"
                            : "a floating-point tensor for the next stage, or a list of defined "
                              "tensors"));
}

const schedule::Schedule& checked(const schedule::Schedule& s, const comm::Group& group,
                                  std::size_t chunks, const Options& options) {
  if (group.size() != s.ranks) {
    throw UsageError(str("schedule ", s.name, " is for ", s.ranks, " ranks, but the group ",
                         group.name(), " has ", group.size(), "; make a schedule for that many"));
  }
  if (chunks != static_cast<std::size_t>(s.chunks)) {
    throw UsageError(str("schedule ", s.name, " has ", s.chunks, " chunks on each rank, but rank ",
                         group.rank(), " gave ", chunks, "; give one for each stage of the rank"));
  }
  if (options.ahead < 0) throw UsageError(str("ahead: got ", options.ahead, "; must be 0 or more"));
  return s;
}

bool is_backward(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_input || kind == Kind::backward_weight;
}

}  // namespace

double Losses::sum() const { return std::accumulate(micro.begin(), micro.end(), 0.0); }

Executor::Executor(schedule::Schedule schedule, comm::Group group, std::vector<Chunk> chunks,
                   Options options)
    : schedule_(checked(schedule, group, chunks.size(), options)),
      group_(std::move(group)),
      chunks_(std::move(chunks)),
      options_(std::move(options)),
      proof_(validate(schedule_)),
      route_(make_route(schedule_, group_.rank())),
      transfers_(group_, schedule_.stage_count() - 1, options_.device, options_.ahead,
                 Transfers::Shapes::of_step, options_.dry_boundary) {
  if (!options_.backward) {
    options_.backward = [](const at::Tensor& root, const Pass&) {
      if (root.requires_grad()) root.backward();
    };
  }
  if (!options_.backward_weight) {
    options_.backward_weight = [](const std::function<void()>& add, const Pass&) { add(); };
  }
  for (const Action& action : schedule_.actions[static_cast<std::size_t>(group_.rank())]) {
    if (!is_backward(action.kind)) continue;
    defers_ = defers_ || action.kind == Kind::backward_weight;
    Ends& ends = action.kind == Kind::backward_weight ? weight_ends_ : backward_ends_;
    ends.micro.resize(chunks_.size());
    ends.micro[static_cast<std::size_t>(action.chunk)] = action.micro;
    ends.last = {action.micro, action.chunk};
  }
}

void Executor::run() {
  if (broken_) {
    throw UsageError(
        "the previous step failed, and its messages may still arrive; create a new executor "
        "with a new group");
  }
  broken_ = true;
  losses_.assign(static_cast<std::size_t>(schedule_.micros), {});
  deferred_ = 0;
  try {
    transfers_.begin(route_);
    for (const Action& action : schedule_.actions[static_cast<std::size_t>(group_.rank())]) {
      transfers_.look_ahead();
      Span span{action.kind, action.micro, action.chunk, std::chrono::steady_clock::now(), {}};
      act(action);
      span.end = std::chrono::steady_clock::now();
      if (options_.on_span) options_.on_span(span);
    }
    transfers_.finish();
  } catch (...) {
    live_.clear();
    throw;
  }
  broken_ = false;
}

// Returns the message of an action. `up`: an activation, otherwise a gradient. `in`: received by
// the stage, otherwise sent.
Message Executor::message(const Action& action, bool up, bool in) const {
  const int stage = this->stage(action.chunk);
  return {up, action.micro, up == in ? stage - 1 : stage};
}

void Executor::act(const Action& action) {
  switch (action.kind) {
    case Kind::forward: return forward(action);
    case Kind::backward:
    case Kind::backward_input: return backward(action);
    case Kind::backward_weight: return backward_weight(action);
    case Kind::send_activation: return transfers_.send(message(action, true, false));
    case Kind::send_gradient: return transfers_.send(message(action, false, false));
    case Kind::receive_activation: return transfers_.receive(message(action, true, true));
    case Kind::receive_gradient: return transfers_.receive(message(action, false, true));
  }
}

void Executor::forward(const Action& action) {
  const int stage = this->stage(action.chunk);
  const memory::CategoryScope category(MemoryCategory::activations);
  Live live;
  if (stage > 0) live.input = transfers_.take(message(action, true, true));
  for (std::size_t i = 0; i < live.input.tensors.size(); ++i) {
    if (live.input.differentiable[i]) live.input.tensors[i].requires_grad_(true);
  }
  if (defers_) live.deferred = c10::make_intrusive<nn::DeferredGradients>();
  Value output;
  {
    const nn::DeferredGradients::Scope deferring(live.deferred);
    output = call(chunks_[static_cast<std::size_t>(action.chunk)], live.input, action.micro);
  }
  check_output(output, stage, schedule_.stage_count());
  if (is_last(stage)) {
    const memory::CategoryScope temporary(MemoryCategory::temporary);
    losses_[static_cast<std::size_t>(action.micro)] =
        output.tensors[0].detach().to(at::kDouble, false, true);
    live.root = std::move(output.tensors[0]);
  } else {
    Value sent{{}, output.list, {}};
    std::vector<at::Tensor> roots;  // outputs that get a gradient
    for (const at::Tensor& tensor : output.tensors) {
      sent.tensors.push_back(tensor.detach().contiguous());
      sent.differentiable.push_back(!output.list || tensor.requires_grad());
      if (sent.differentiable.back()) roots.push_back(tensor);
    }
    transfers_.put(message(action, true, false), std::move(sent));
    live.gradient = c10::make_intrusive<Gradient>();
    live.root = Root<Gradient>::apply(at::TensorList(roots), live.gradient, options_.device);
  }
  live_[{action.micro, action.chunk}] = std::move(live);
}

Pass Executor::pass(const Action& action) const {
  const Ends& ends = action.kind == Kind::backward_weight ? weight_ends_ : backward_ends_;
  return {action.micro, action.chunk,
          ends.micro[static_cast<std::size_t>(action.chunk)] == action.micro,
          ends.last == std::pair(action.micro, action.chunk)};
}

void Executor::backward(const Action& action) {
  const int stage = this->stage(action.chunk);
  const auto found = live_.find({action.micro, action.chunk});
  Live& live = found->second;
  if (live.gradient) {
    Value received = transfers_.take(message(action, false, true));
    for (at::Tensor& gradient : received.tensors) {
      if (gradient.defined()) live.gradient->values.push_back(std::move(gradient));
    }
  }
  options_.backward(std::exchange(live.root, {}), pass(action));
  if (stage > 0) {
    // The previous stage waits for a gradient even if this stage does not use the input.
    Value gradients{{}, live.input.list, live.input.differentiable};
    for (std::size_t i = 0; i < live.input.tensors.size(); ++i) {
      at::Tensor& gradient = gradients.tensors.emplace_back();
      if (!live.input.differentiable[i]) continue;
      gradient = live.input.tensors[i].grad();
      if (!gradient.defined()) gradient = at::zeros_like(live.input.tensors[i]);
      gradient = gradient.contiguous();
    }
    transfers_.put(message(action, false, false), std::move(gradients));
  }
  if (action.kind == Kind::backward) {
    live_.erase(found);
  } else {
    live.input = {};
    live.gradient.reset();
  }
}

void Executor::backward_weight(const Action& action) {
  const auto node = live_.extract({action.micro, action.chunk});
  nn::DeferredGradients& deferred = *node.mapped().deferred;
  options_.backward_weight([&] { deferred.run(); }, pass(action));
  deferred_ += deferred.pushed();
}

// The last stage has them and broadcasts them.
Losses Executor::losses() const {
  if (losses_.empty() || broken_) {
    throw UsageError("losses(): there is no successful step; call run() first");
  }
  const int owner = schedule_.home(schedule_.stage_count() - 1).rank;
  at::Tensor values = at::zeros({schedule_.micros}, at::kDouble);
  if (group_.rank() == owner) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& loss : losses_) all.push_back(loss.reshape({}));
    values = at::stack(all).to(at::kCPU);
  }
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "losses of the micro-batches";
  group_.broadcast(values, owner, call).wait();
  const auto* first = values.const_data_ptr<double>();
  return {std::vector<double>(first, first + values.numel())};
}

// Micro-batch m is at stage s in turn m + s. A rank that works in the order of turns waits only for
// results of earlier turns.
std::vector<Value> run_forward(const schedule::Schedule& layout, const comm::Group& group,
                               const std::vector<Chunk>& chunks, int micros, c10::Device device) {
  checked(layout, group, chunks.size(), {});
  schedule::Schedule forward = layout;
  forward.micros = micros;
  forward.actions.assign(static_cast<std::size_t>(layout.ranks), {});
  const int stages = layout.stage_count();
  const auto on = [&](int stage) { return layout.home(stage).rank; };
  for (int turn = 0; turn < micros + stages - 1; ++turn) {
    for (int stage = 0; stage < stages; ++stage) {
      const int micro = turn - stage;
      if (micro < 0 || micro >= micros) continue;
      const auto [rank, chunk] = layout.home(stage);
      auto& actions = forward.actions[static_cast<std::size_t>(rank)];
      if (stage > 0 && on(stage - 1) != rank) {
        actions.push_back({Kind::receive_activation, micro, chunk});
      }
      actions.push_back({Kind::forward, micro, chunk});
      if (stage + 1 < stages && on(stage + 1) != rank) {
        actions.push_back({Kind::send_activation, micro, chunk});
      }
    }
  }
  const Route route = make_route(forward, group.rank());
  Transfers transfers(group, stages - 1, device, /*ahead=*/0, Transfers::Shapes::of_each);
  transfers.begin(route);
  std::vector<Value> outputs;
  for (const Action& action : forward.actions[static_cast<std::size_t>(group.rank())]) {
    const int stage = layout.stage(group.rank(), action.chunk);
    const Message in{true, action.micro, stage - 1}, out{true, action.micro, stage};
    if (action.kind == Kind::receive_activation) transfers.receive(in);
    if (action.kind == Kind::send_activation) transfers.send(out);
    if (action.kind != Kind::forward) continue;
    Value value = call(chunks[static_cast<std::size_t>(action.chunk)],
                       stage > 0 ? transfers.take(in) : Value(), action.micro);
    for (at::Tensor& tensor : value.tensors) tensor = tensor.detach().contiguous();
    if (stage + 1 == stages) {
      outputs.push_back(std::move(value));
    } else {
      value.differentiable.assign(value.tensors.size(), false);
      transfers.put(out, std::move(value));
    }
  }
  transfers.finish();
  return outputs;
}

std::string Executor::describe() const {
  const int held = proof_.in_flight[static_cast<std::size_t>(group_.rank())];
  std::string text =
      str(schedule_.name, ": ", schedule_.stage_count(), " stages on ", schedule_.ranks, " ranks, ",
          schedule_.micros, " micro-batches; rank ", group_.rank(), " holds ", held, " at most");
  if (!defers_) return text;
  text +=
      "; the weight gradients of linears of tessera::nn are deferred, all others (biases, norms, "
      "embeddings, torch::nn::Linear) are computed with the gradients of the inputs";
  if (deferred_ == 0) text += "; no layer here deferred any, so the schedule has no benefit";
  if (deferred_ > 0) text += str("; the last step deferred ", deferred_);
  return text;
}

}  // namespace tessera::pipeline
