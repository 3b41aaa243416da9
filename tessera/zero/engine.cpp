#include "tessera/zero/engine.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/zero/engine_impl.h"

namespace tessera::zero {
namespace {

// Autograd calls it when a parameter's gradient has been accumulated.
template <typename Impl>
struct GradHook final : torch::autograd::PostAccumulateGradHook {
  GradHook(std::weak_ptr<Impl> owner, int index) : engine(std::move(owner)), param(index) {}
  void operator()(const torch::autograd::Variable&) override {
    if (const auto alive = engine.lock()) alive->on_gradient(param);
  }
  std::weak_ptr<Impl> engine;
  int param;
};

template <typename Impl>
struct UnitWatch final : nn::UnitObserver {
  UnitWatch(std::weak_ptr<Impl> owner, int index) : engine(std::move(owner)), unit(index) {}
  void enter_forward(bool differentiable) override {
    if (const auto alive = engine.lock()) alive->enter_forward(unit, differentiable);
  }
  void leave_forward(bool differentiable) override {
    if (const auto alive = engine.lock()) alive->leave_forward(unit, differentiable);
  }
  void enter_backward() override {
    if (const auto alive = engine.lock()) alive->enter_backward(unit);
  }
  void leave_backward() override {
    if (const auto alive = engine.lock()) alive->leave_backward(unit);
  }
  std::weak_ptr<Impl> engine;
  int unit;
};

const Options& checked(const Options& options) {
  sharding_of_stage(options.stage);
  const auto require = [](bool good, const std::string& problem) {
    if (!good) throw UsageError(problem);
  };
  const auto& known = state_layouts();
  require(
      std::find(known.begin(), known.end(), options.layout) != known.end(),
      str("layout ", quote(options.layout.name),
          " is for planning only; the engine runs bf16, bf16-fp32grad, bf16-nomaster and fp32"));
  require(options.micro_batches >= 1,
          str("micro_batches: got ", options.micro_batches, ", wanted at least 1"));
  require(options.bucket_bytes >= 0, str("bucket_bytes: got ", options.bucket_bytes,
                                         ", wanted bytes, or 0 for what suits the "
                                         "model"));
  require(options.clip_norm >= 0 && std::isfinite(options.clip_norm),
          str("clip_norm: got ", options.clip_norm, ", wanted a positive norm, or 0 for none"));
  return options;
}

}  // namespace

ParamPolicy default_policy(const std::string&, const at::Tensor& param) {
  ParamPolicy policy;
  policy.decay = param.dim() >= 2;
  return policy;
}

Engine::Impl::Impl(std::shared_ptr<torch::nn::Module> m, comm::Group g, Options o)
    : model(std::move(m)),
      group(std::move(g)),
      options(checked(o)),
      policy(options.reduce.value_or(default_reduce_policy(options.stage))),
      plan(same_on_all_ranks(make_plan(*model, options, group.size()), *model, group, options)),
      buffers(group, options.ledger ? options.ledger : memory::current_ledger()),
      gatherer(plan, options, group, buffers, options.broadcast_start),
      reducer(plan, options, group, buffers),
      update(make_update({plan, options, group, buffers, gatherer})),
      passes(plan.units.size()),
      model_chunks(static_cast<std::size_t>(plan.model_chunks)) {
  for (const Param& param : plan.params) {
    if (param.bucket >= 0) ++passes[static_cast<std::size_t>(param.unit)].trainable;
  }
}

void Engine::Impl::attach() {
  for (const Param& param : plan.params) {
    if (param.bucket >= 0 && torch::autograd::impl::post_acc_grad_hooks(param.tensor) != nullptr) {
      throw UsageError("this model has an engine already; destroy it before making another");
    }
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    observers.push_back(std::make_shared<UnitWatch<Impl>>(weak_from_this(), static_cast<int>(u)));
    if (plan.units[u].hook != nullptr) plan.units[u].hook->observe(observers.back());
  }
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    if (plan.params[i].bucket < 0) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        plan.params[i].tensor,
        std::make_unique<GradHook<Impl>>(weak_from_this(), static_cast<int>(i)));
  }
}

void Engine::Impl::detach() {
  for (const UnitPlan& unit : plan.units) {
    if (unit.hook != nullptr) unit.hook->observe(nullptr);
  }
  for (const Param& param : plan.params) {
    if (param.bucket >= 0) {
      torch::autograd::impl::set_post_acc_grad_hooks(param.tensor, nullptr);
      param.tensor.mutable_grad().reset();
    }
  }
  gatherer.detach();
}

void Engine::Impl::enter_forward(int unit, bool differentiable) {
  // A unit inside a recomputed segment is entered again while that is recomputed.
  if (in_backward) return gatherer.enter_recompute(unit);
  if (unit != 0 && depth == 0 && gatherer.shards()) {
    throw UsageError(str("unit ", quote(plan.units[static_cast<std::size_t>(unit)].name),
                         " was called outside the engine; at stage 3 the model runs through it: "
                         "train(x) of DataParallel, or nn::observed(engine.root(), …)"));
  }
  ++depth;
  UnitPass& pass = passes[static_cast<std::size_t>(unit)];
  if (at::GradMode::is_enabled()) ++pass.entries.now;
  if (differentiable) ++pass.leaves.now;
  gatherer.enter_forward(unit);
}

void Engine::Impl::leave_forward(int unit, bool differentiable) {
  if (in_backward) return;
  --depth;
  gatherer.leave_forward(unit, differentiable);
  if (depth == 0) {
    for (UnitPass& pass : passes) {
      pass.entries.end();
      pass.leaves.end();
    }
  }
  if (unit == 0) gatherer.end_forward();
}

void Engine::Impl::enter_backward(int unit) {
  if (gatherer.shards() && !in_backward) {
    throw UsageError(
        "loss.backward() was called; at stage 3 backward goes through the engine: "
        "train.backward(loss)");
  }
  gatherer.enter_backward(unit);
}

void Engine::Impl::leave_backward(int unit) {
  UnitPass& pass = passes[static_cast<std::size_t>(unit)];
  if (pass.leaves_due > 0) --pass.leaves_due;
  reshard_if_done(unit);
}

// A unit's parameters are needed until its inputs have their gradients and it has its own: what
// else there may be of it in the graph then does not read them.
void Engine::Impl::reshard_if_done(int unit) {
  if (unit == 0) return;  // lives to the end of the pass
  const UnitPass& pass = passes[static_cast<std::size_t>(unit)];
  if (pass.leaves_due == 0 && pass.params_due == 0) gatherer.reshard(unit);
}

void Engine::Impl::on_gradient(int index) {
  if (!in_backward && deferred > 0) return;  // finish_pass() takes it in
  if (!in_backward) {
    throw UsageError(
        "loss.backward() was called; backward goes through the engine, which scales "
        "the loss and ends the pass: train.backward(loss)");
  }
  const Param& param = plan.params[static_cast<std::size_t>(index)];
  // Autograd calls also where an operation had no gradient to give: it comes later, or never.
  if (!param.tensor.grad().defined()) return;
  UnitPass& pass = passes[static_cast<std::size_t>(param.unit)];
  // [Note: last gradient] Outside recomputed segments autograd adds up all uses of a parameter
  // before it calls. Inside, each segment has a graph of its own: only of a parameter whose unit is
  // that segment, and was used once, is this known to be all. Others wait for the end of the pass.
  const UnitPlan& unit = plan.units[static_cast<std::size_t>(param.unit)];
  const bool last =
      nn::recomputing_depth() == 0 || (nn::recomputing_depth() == 1 && unit.hook != nullptr &&
                                     nn::recomputing_segment() == unit.hook && pass.uses == 1);
  const bool before = reducer.arrived(index);
  reducer.on_gradient(index, last);
  if (!before && reducer.arrived(index) && --pass.params_due == 0) reshard_if_done(param.unit);
}

void Engine::Impl::begin_step(int count) {
  if (stepping) {
    throw UsageError(str("begin() in the middle of a step: ", model_chunks.front().passes, " of ",
                         micro_batches, " micro-batches are done; call step() first"));
  }
  stepping = true;
  micro_batches = count;
  for (ModelChunk& chunk : model_chunks) chunk = {};
  scale = 1.0 / (static_cast<double>(group.size()) * count);
  tokens.reset();
  tied_added = false;
  loss_sum.reset();
  reducer.begin_step();
}

Engine::Engine(std::shared_ptr<torch::nn::Module> model, comm::Group group, Options options)
    : impl_(std::make_shared<Impl>(std::move(model), std::move(group), std::move(options))) {
  impl_->attach();
  try {
    impl_->check_start();
  } catch (...) {
    impl_->detach();
    throw;
  }
  if (impl_->group.rank() == 0 && impl_->plan.units.size() == 1 && impl_->options.stage > 0) {
    Logger().warn(describe());
  }
}

Engine::~Engine() {
  // Parameters that are still on their way arrive, for whoever uses the model next. A rank that
  // fails is not kept, and a failure here has been reported already.
  if (std::uncaught_exceptions() == 0) {
    try {
      impl_->gatherer.wait_all();
    } catch (...) {
    }
  }
  // Hooks find the engine gone all the same: they hold it weakly.
  try {
    impl_->detach();
  } catch (...) {
  }
}

void Engine::begin(const Begin& begin) {
  Impl& impl = *impl_;
  impl.begin_step(begin.micro_batches > 0 ? begin.micro_batches : impl.options.micro_batches);
  if (!begin.tokens) return;
  // Known when the first backward needs it: on the way it may stand behind gathers that the forward
  // overlaps.
  impl.tokens = at::full({1}, *begin.tokens, at::dtype(at::kDouble));
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "tokens";
  impl.tokens_known = impl.group.all_reduce(impl.tokens, call);
}

void Engine::backward(const at::Tensor& loss) { impl_->backward(loss, {}, {}); }
void Engine::backward(const at::Tensor& output, const at::Tensor& gradient,
                      const BackwardPass& pass) {
  impl_->backward(output, gradient, pass);
}
void Engine::finish_pass(int model_chunk) { impl_->finish_pass(model_chunk); }
StepInfo Engine::step(std::optional<double> lr) { return impl_->step(lr); }
void Engine::finish_reduction() { impl_->finish_reduction(); }
void Engine::discard() {
  impl_->end_failed_pass();
  impl_->finish_reduction();  // the other ranks may wait for this one's gradients
  impl_->gatherer.begin_update();
  impl_->failed = false;
  impl_->end_step();
}
void Engine::synchronize() { impl_->gatherer.wait_all(); }
const std::shared_ptr<nn::UnitObserver>& Engine::root() const { return impl_->observers.front(); }

Engine::NoSync::NoSync(Engine& engine) : engine_(engine) { ++engine_.impl_->no_sync; }
Engine::NoSync::~NoSync() { --engine_.impl_->no_sync; }

std::uint64_t Engine::params_hash() { return impl_->hash(); }
const Options& Engine::options() const { return impl_->options; }
const comm::Group& Engine::group() const { return impl_->group; }
std::int64_t Engine::steps() const { return impl_->update->steps(); }
std::int64_t Engine::traveling_param_bytes() const {
  return impl_->plan.param_bytes(/*frozen=*/impl_->gatherer.shards());
}
std::int64_t Engine::traveling_grad_bytes() const { return impl_->plan.grad_bytes(); }

Times Engine::times() const {
  return {impl_->reducer.exposed().seconds() + impl_->gatherer.exposed().seconds(),
          impl_->optimizer_time.seconds()};
}

void Engine::reset_times() {
  impl_->reducer.exposed().reset();
  impl_->gatherer.exposed().reset();
  impl_->optimizer_time.reset();
}

}  // namespace tessera::zero
