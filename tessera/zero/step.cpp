// A step of the engine: its backward passes and the update.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/zero/engine_impl.h"
#include "tessera/zero/module_buffers.h"
#include "tessera/zero/step_sums.h"

namespace tessera::zero {
namespace {

struct DoneStep final : PendingStep::State {
  explicit DoneStep(const StepInfo& known) : info(known) {}
  bool ready() const override { return true; }
  StepInfo get() override { return info; }
  StepInfo info;
};

// Throws UsageError if two threads are inside backward() or step(), which would mix their passes.
// PassState detects nested calls on one thread.
class OneThread {
 public:
  OneThread(std::atomic<std::thread::id>& caller, const char* call) : caller_(caller) {
    std::thread::id inside;
    first_ = caller.compare_exchange_strong(inside, std::this_thread::get_id());
    if (first_ || inside == std::this_thread::get_id()) return;
    throw UsageError(str(call,
                         ": another thread is in backward() or step() of this engine. Call them "
                         "from one thread at a time, and not from hooks of a model on a GPU"));
  }
  ~OneThread() {
    if (first_) caller_.store({});
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  std::atomic<std::thread::id>& caller_;
  bool first_ = false;
};

}  // namespace

std::string non_finite_text(std::int64_t step, const StepInfo& info) {
  return str("The gradient or the loss is not finite in step ", step, " (norm ", info.grad_norm,
             ", loss ", info.loss, ")",
             info.non_finite_param.empty()
                 ? std::string()
                 : str(". In the order of backward, ", info.non_finite_param,
                       " is the first parameter of this rank with such a gradient"),
             ". Lower the learning rate, clip, or skip such steps (on_non_finite = skip)");
}

const Engine::Impl*& Engine::Impl::running() {
  thread_local const Impl* engine = nullptr;
  return engine;
}

StepInfo PendingStep::get() const {
  if (state_ == nullptr) {
    throw UsageError(
        "This step was captured but has not run. Call replayed() after a replay to get its result");
  }
  return state_->get();
}

void Engine::Impl::begin_step(int micro_batches) {
  passes.begin_step(micro_batches);
  loss.begin(micro_batches);
  reducer.begin_step();
}

bool Engine::Impl::on_device(const at::Tensor& output) const {
  return device != nullptr && !output.is_cpu();
}

// [Note: loss scaling] in kernels/cuda/optimizer.h.
at::Tensor Engine::Impl::scaled_up(const at::Tensor& root) const {
  const at::Tensor scale = device ? device->loss_scale() : at::Tensor();
  return scale.defined() ? root * (root.is_cpu() ? scale.cpu() : scale) : root;
}

void Engine::Impl::backward(const at::Tensor& output, const at::Tensor& gradient,
                            const BackwardPass& pass) {
  const OneThread one(caller, "backward()");
  check_params("backward()");
  const bool is_loss = !gradient.defined();
  if (is_loss && (output.numel() != 1 || !at::isFloatingType(output.scalar_type()))) {
    throw UsageError(tessera::str("backward: got a loss of shape ", output.sizes(), " and type ",
                                  c10::toString(output.scalar_type()),
                                  ", must be one floating-point number"));
  }
  // A pipeline stage may consist of frozen layers. If nothing at all is trained, step() throws.
  if (!output.requires_grad() && !pass.of_one_forward && !plan.buckets.empty()) {
    throw UsageError(
        str("backward(): the ", is_loss ? "loss" : "output",
            " has no graph (requires_grad is false), so no gradient can be computed. It was "
            "computed under a NoGradGuard, or from detached tensors or numbers. Compute it from "
            "train(x) with gradients enabled"));
  }
  visiting = 0;  // in case a visit ended in an exception
  if (!passes.stepping()) begin_step(options.micro_batches);
  const bool reduce = passes.reduces(pass.model_chunk) && !pass.deferred;
  const double scale = loss.scale(reducer.exposed());
  reducer.begin_pass(pass.model_chunk, reduce);
  at::Tensor counted, root = output;
  if (is_loss) {
    counted =
        on_device(output) ? output * device->factor(scale, output.scalar_type()) : output * scale;
    root = scaled_up(counted);
  }
  passes.begin_backward(pass);
  const Impl* const around = std::exchange(running(), this);
  try {
    if (root.requires_grad()) root.backward(gradient);
  } catch (...) {
    running() = around;
    passes.fail_backward();
    throw;
  }
  running() = around;
  passes.end_backward();
  reducer.end_pass();
  gatherer.end_backward();
  if (is_loss) loss.add(counted);
}

void Engine::Impl::finish_pass(int model_chunk) {
  const bool reduce = passes.finish_pass(model_chunk);
  reducer.begin_pass(model_chunk, reduce);
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const Param& param = plan.params[i];
    if (param.bucket >= 0 && param.model_chunk == model_chunk && param.tensor.grad().defined()) {
      reducer.on_gradient(static_cast<int>(i), true);
    }
  }
  reducer.end_pass();
}

void Engine::Impl::finish_reduction() {
  if (!passes.stepping()) begin_step(options.micro_batches);  // a rank without data
  // Ranks that had fewer micro-batches take part in the reductions of the others, with zeros.
  for (int c = 0; c < plan.model_chunks; ++c) {
    for (int due = passes.reductions_due(c); due > 0; --due) {
      reducer.begin_pass(c, true);
      reducer.end_pass();
    }
    passes.all_reduced(c);
  }
  reducer.finish();
  add_tied();
}

// Sums the gradients of tied parameters over the parts of the model that hold a copy. Each part has
// reduced its own gradient by now, so only the elements that a rank updates are sent.
void Engine::Impl::add_tied() {
  if (!passes.take_ties()) return;
  for (const ModelAxes::Tie& tie : options.axes.ties) {
    for (std::size_t i = 0; i < plan.params.size(); ++i) {
      if (plan.params[i].name != tie.param || plan.params[i].bucket < 0) continue;
      const at::Tensor grad = reducer.grad_shard(static_cast<int>(i));
      if (grad.numel() == 0) continue;
      comm::Call call;
      call.label = tie.param + " (tied)";
      const comm::Work work = tie.group.all_reduce(grad, call);
      reducer.exposed().time([&] { work.wait(); });
    }
  }
}

void Engine::Impl::discard() {
  visiting = 0;
  // Ranks on which the pass succeeded have sent all its buckets, so this rank must, too.
  if (passes.failed()) reducer.end_pass();
  passes.close_failed();
  finish_reduction();  // other ranks may be waiting for this rank's gradients
  gatherer.begin_update();
  passes.end_step();
}

StepSettings Engine::Impl::settings_of(const StepOptions& how) const {
  const auto checked = [](const char* name, double value, const std::string& of = "") {
    if (value >= 0 && std::isfinite(value)) return value;
    throw UsageError(str("step(): ", name, of, ": got ", value, ", must be 0 or more and finite"));
  };
  if (how.weight_decay && !update->sets_weight_decay()) {
    throw UsageError(
        "step(): weight_decay cannot be set for this optimizer of torch::optim. The engine "
        "supports it for AdamW, Adam, SGD, RMSprop and Adagrad");
  }
  StepSettings settings;
  settings.lr = checked("lr", how.lr.value_or(update->default_lr()));
  settings.clip_norm = checked("clip_norm", how.clip_norm.value_or(options.clip_norm));
  if (how.weight_decay) settings.weight_decay = checked("weight_decay", *how.weight_decay);
  for (const Param& param : plan.params) {
    settings.lr_scales.push_back(
        how.lr_scale && param.bucket >= 0
            ? checked("lr_scale of ", how.lr_scale(param.name), quote(param.name))
            : param.policy.lr_scale);
  }
  return settings;
}

void Engine::Impl::abandon_step() {
  passes.end_step();
  gatherer.begin_update();
}

PendingStep Engine::Impl::start_step(const StepOptions& how) {
  const OneThread one(caller, "step()");
  passes.check_step();
  check_params("step()");
  const StepSettings settings = settings_of(how);
  if (plan.buckets.empty() && options.axes.group.size() == 1) {
    throw UsageError(
        "step(): all parameters are frozen, so there is nothing to train. Call "
        "requires_grad_(true) for some of them before making the engine");
  }
  // A rank without data may omit backward. With several ranks, the exchange below checks them.
  if ((group.size() == 1 || group.simulated()) && !plan.buckets.empty() && !passes.has_work()) {
    if (passes.stepping()) {
      finish_reduction();
      abandon_step();
    }
    throw NoBackward();
  }
  take_writes();
  finish_reduction();
  if (device == nullptr) return PendingStep(std::make_shared<DoneStep>(step_on_host(settings)));
  const at::Tensor sum = loss.total();
  try {
    optimizer_time.time([&] {
      device->decide(sum.defined() ? sum.to(plan.params.front().tensor.device()) : sum,
                     reducer.used(), settings, rank_step(settings), reducer.exposed());
    });
  } catch (const NoBackward&) {
    abandon_step();
    throw;
  }
  end_step();
  // If the step is skipped, the device updates nothing and the gather sends the old values.
  optimizer_time.time([&] { device->update(); });
  gatherer.all_gather_updated();
  counts_on_device = true;
  return device->result();
}

RankStep Engine::Impl::rank_step(const StepSettings& settings) const {
  std::uint64_t scales = 0, writes = written_bits, experts = 0, index = 0;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const double scale = settings.lr_scales[i];
    if (plan.of_expert(i)) {
      experts = mix(mix(experts, &scale, sizeof(scale)), written[i] ? i + 1 : 0);
      continue;
    }
    scales = mix(scales, &scale, sizeof(scale));
    ++index;
    writes = mix(writes, written[i] ? index : 0);
  }
  RankStep own;
  own.trains = plan.buckets.empty() ? 0 : 1;
  own.has_work = passes.has_work() ? 1 : 0;
  own.lr = settings.lr;
  own.clip_norm = settings.clip_norm;
  own.weight_decay = settings.weight_decay.value_or(update->weight_decay());
  own.lr_scales = number_of(scales);
  own.written = number_of(writes);
  own.of_experts = number_of(experts);
  return own;
}

void Engine::Impl::prepare_step(const Begin& begin, const StepOptions& how) {
  if (device == nullptr) {
    throw UsageError(str("Steps of this engine cannot be captured: ", device_problem));
  }
  if (passes.stepping())
    throw UsageError("graphs().prepare() was called in the middle of a step. Call step() first");
  check_params("prepare_step()");
  take_writes();
  const StepSettings settings = settings_of(how);
  loss.begin(begin.micro_batches > 0 ? begin.micro_batches : options.micro_batches);
  if (begin.tokens) loss.weigh_by_tokens(*begin.tokens);
  RankStep own = rank_step(settings);
  own.has_work = 1;  // its passes are in the graph
  std::fill(written.begin(), written.end(), false);
  written_bits = 0;
  device->prepare(loss.scale(reducer.exposed()), settings, own);
}

PendingStep Engine::Impl::replayed() {
  if (device == nullptr) {
    throw UsageError(str("Steps of this engine cannot be captured: ", device_problem));
  }
  counts_on_device = true;
  return device->replayed();
}

void Engine::Impl::fetch_counts() {
  if (!std::exchange(counts_on_device, false)) return;
  StepOnDevice::Counts counts = device->counts();
  update->resume(counts.steps, std::move(counts.updates));
  if (!device->loss_scale().defined()) return;
  loss_scale = counts.loss_scale;
  good_steps = counts.good_steps;
}

void Engine::Impl::end_step() {
  passes.end_step();
  gatherer.begin_update();
  std::fill(written.begin(), written.end(), false);
  written_bits = 0;
  if (model->is_training() && options.broadcast_buffers) {
    broadcast_module_buffers(*model, group, reducer.exposed());
  }
}

StepInfo Engine::Impl::step_on_host(const StepSettings& settings) {
  StepSums mine;
  optimizer_time.time([&] { mine.squares = update->sum_of_squares(reducer); });
  mine.loss = loss.sum();
  mine.used = reducer.used();
  mine.own = rank_step(settings);
  undecided = settings;
  const StepSums sums = sum_and_compare(plan, groups, options.axes, mine, reducer.exposed());
  if (!group.simulated() && !any_has_work(sums.ranks)) {
    undecided.reset();
    abandon_step();
    throw NoBackward();
  }
  outcome = StepOutcome{decided + 1, sums.loss, sums.squares, sums.used};
  end_step();
  const StepInfo info = apply_outcome();
  if (!info.skipped) gatherer.all_gather_updated();
  return info;
}

// Updates the parameters by `outcome`, or skips the step: [Note: decided steps].
StepInfo Engine::Impl::apply_outcome() {
  const StepSettings settings = *undecided;
  StepInfo info;
  info.loss = outcome->loss;
  info.grad_norm = std::sqrt(outcome->squares);
  info.skipped = !std::isfinite(info.grad_norm) || !std::isfinite(info.loss);
  if (info.skipped) {
    info.non_finite_index = update->last_non_finite(reducer);
    if (info.non_finite_index >= 0) {
      info.non_finite_param = nth(plan.params, info.non_finite_index).name;
    }
  } else {
    double factor = 1;
    if (settings.clip_norm > 0) {
      factor = std::min(1.0, settings.clip_norm / (info.grad_norm + 1e-6));
    }
    optimizer_time.time([&] { update->apply(reducer, outcome->used, settings, factor); });
  }
  undecided.reset();
  ++decided;
  if (info.skipped && options.on_non_finite == OnNonFinite::stop) {
    throw Error(non_finite_text(update->steps() + 1, info));
  }
  return info;
}

}  // namespace tessera::zero
