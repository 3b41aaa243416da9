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
  require(options.bucket_bytes >= 1,
          str("bucket_bytes: got ", options.bucket_bytes, ", wanted at least 1"));
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
      plan(make_plan(*model, options, group.size())),
      buffers(group, options.ledger ? options.ledger : memory::current_ledger()),
      gatherer(plan, options, group, buffers, options.broadcast_start),
      reducer(plan, options, group, buffers),
      update(make_update(plan, options, group, buffers, gatherer)),
      passes(plan.units.size()) {
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
  gatherer.abandon();
}

void Engine::Impl::enter_forward(int unit, bool differentiable) {
  // A unit inside a checkpointed segment is entered again while that is recomputed.
  if (in_backward) return gatherer.enter_recompute(unit);
  if (unit != 0 && depth == 0 && gatherer.shards()) {
    throw UsageError(str("unit ", quote(plan.units[static_cast<std::size_t>(unit)].name),
                         " was called outside the engine; at stage 3 the model runs through it: "
                         "train(x) of DataParallel, or nn::observed(engine.root(), …)"));
  }
  ++depth;
  UnitPass& pass = passes[static_cast<std::size_t>(unit)];
  if (at::GradMode::is_enabled()) ++pass.entries;
  if (differentiable) ++pass.leaves_due;
  gatherer.enter_forward(unit);
}

void Engine::Impl::leave_forward(int unit, bool differentiable) {
  if (in_backward) return;
  --depth;
  gatherer.leave_forward(unit, differentiable);
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
  release_if_done(unit);
}

// A unit's parameters are needed until its inputs have their gradients and it has its own: what
// else there may be of it in the graph then does not read them.
void Engine::Impl::release_if_done(int unit) {
  if (unit == 0) return;  // lives to the end of the pass
  const UnitPass& pass = passes[static_cast<std::size_t>(unit)];
  if (pass.leaves_due == 0 && pass.params_due == 0) gatherer.release(unit);
}

void Engine::Impl::on_gradient(int index) {
  if (!in_backward) {
    throw UsageError(
        "loss.backward() was called; backward goes through the engine, which scales "
        "the loss and ends the pass: train.backward(loss)");
  }
  const Param& param = plan.params[static_cast<std::size_t>(index)];
  UnitPass& pass = passes[static_cast<std::size_t>(param.unit)];
  // [Note: last gradient] Outside checkpointed segments autograd adds up all uses of a parameter
  // before it calls. Inside, each segment has a graph of its own: only of a parameter whose unit is
  // that segment, and was used once, is this known to be all. Others wait for the end of the pass.
  const UnitPlan& unit = plan.units[static_cast<std::size_t>(param.unit)];
  const bool last =
      nn::recompute_depth() == 0 || (nn::recompute_depth() == 1 && unit.hook != nullptr &&
                                     nn::recompute_segment() == unit.hook && pass.entries == 1);
  const bool before = reducer.arrived(index);
  reducer.on_gradient(index, last);
  if (!before && reducer.arrived(index) && --pass.params_due == 0) release_if_done(param.unit);
}

void Engine::Impl::begin_step(int count) {
  if (stepping) {
    throw UsageError(str("begin() in the middle of a step: ", micro_batch, " of ", micro_batches,
                         " micro-batches are done; call step() first"));
  }
  stepping = true;
  micro_batches = count;
  micro_batch = 0;
  unreduced = false;
  scale = 1.0 / (static_cast<double>(group.size()) * count);
  loss_sum.reset();
  reducer.begin_step();
}

void Engine::Impl::backward(const at::Tensor& loss) {
  if (!stepping) begin_step(options.micro_batches);
  if (loss.numel() != 1 || !at::isFloatingType(loss.scalar_type())) {
    throw UsageError(tessera::str("backward: got a loss of shape ", loss.sizes(), " and type ",
                                  c10::toString(loss.scalar_type()),
                                  ", wanted one floating-point number"));
  }
  if (micro_batch >= micro_batches) {
    throw UsageError(str("backward was called ", micro_batch + 1, " times, but a step has ",
                         micro_batches, " micro-batches; call step(), or set micro_batches"));
  }
  if (!gatherer.shards() && gatherer.on_its_way(0)) {
    throw UsageError(
        "the forward of this loss did not run through the engine, which had not gathered the new "
        "parameters yet: call train(x), or nn::observed(engine.root(), …), instead of the model");
  }
  if (failed) {
    throw UsageError(
        "the backward pass before this one failed, and some of its gradients may be "
        "on their way; call discard() on all ranks first");
  }
  const bool reduce =
      no_sync == 0 && (policy == ReducePolicy::each || micro_batch + 1 == micro_batches);
  for (std::size_t u = 0; u < passes.size(); ++u) passes[u].params_due = passes[u].trainable;
  reducer.begin_micro_batch(reduce);
  const at::Tensor scaled = loss * scale;
  {
    in_backward = true;
    struct Ended {
      bool& flag;
      ~Ended() { flag = false; }
    } ended{in_backward};
    failed = true;
    if (scaled.requires_grad()) scaled.backward();
    failed = false;
  }
  reducer.end_micro_batch();
  gatherer.end_backward();
  for (UnitPass& pass : passes) pass.entries = 0;
  const at::Tensor value = scaled.detach().to(at::kDouble);
  loss_sum = loss_sum.defined() ? loss_sum + value : value;
  unreduced = !reduce;
  ++micro_batch;
}

void Engine::Impl::finish_reduction() {
  if (!stepping) begin_step(options.micro_batches);  // a rank without data has no backward
  // Ranks that had fewer micro-batches take part in the reductions of the others, with nothing.
  const int missing = micro_batches - micro_batch;
  const int passes_due = policy == ReducePolicy::each ? missing : (missing > 0 || unreduced);
  for (int i = 0; i < std::max(passes_due, unreduced ? 1 : 0); ++i) {
    reducer.begin_micro_batch(true);
    reducer.end_micro_batch();
  }
  micro_batch = micro_batches;
  unreduced = false;
  reducer.finish();
}

StepInfo Engine::Impl::step(std::optional<double> lr) {
  if (failed) {
    throw UsageError("a backward pass of this step failed; call discard() on all ranks first");
  }
  finish_reduction();
  // One exchange tells all ranks the norm, the loss and which parameters anyone has used.
  constexpr int kBits = 48;  // of a double, exactly
  const std::size_t words = (plan.params.size() + kBits - 1) / kBits;
  const at::Tensor mine = at::zeros({static_cast<std::int64_t>(words) + 2}, at::dtype(at::kDouble));
  auto* values = mine.data_ptr<double>();
  optimizer_time.time([&] { values[0] = update->sum_of_squares(reducer); });
  values[1] = loss_sum.defined() ? loss_sum.item<double>() : 0;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    if (reducer.used()[i]) values[2 + i / kBits] += std::ldexp(1.0, static_cast<int>(i % kBits));
  }
  const at::Tensor all = at::empty({mine.numel() * group.size()}, at::dtype(at::kDouble));
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "norm, loss and used parameters";
  const comm::Work work = group.all_gather(all, mine, call);
  reducer.exposed().time([&] { work.wait(); });
  StepInfo info;
  double squares = 0;
  std::vector<bool> used(plan.params.size());
  for (int r = 0; r < group.size(); ++r) {
    const double* theirs = all.data_ptr<double>() + r * mine.numel();
    squares += theirs[0];
    info.loss += theirs[1];
    for (std::size_t i = 0; i < plan.params.size(); ++i) {
      const auto bits = static_cast<std::uint64_t>(theirs[2 + i / kBits]);
      if ((bits >> (i % kBits)) & 1) used[i] = true;
    }
  }
  info.grad_norm = std::sqrt(squares);
  stepping = false;
  depth = 0;
  for (UnitPass& pass : passes) pass.leaves_due = 0;
  gatherer.begin_update();
  if (model->is_training() && options.broadcast_buffers) send_buffers();
  if (!std::isfinite(info.grad_norm) || !std::isfinite(info.loss)) {
    if (options.on_non_finite == OnNonFinite::stop) {
      throw Error(str("the gradient or the loss is not finite in step ", update->steps() + 1,
                      " (norm ", info.grad_norm, ", loss ", info.loss,
                      "); lower the learning rate, clip, or skip such steps "
                      "(on_non_finite = skip)"));
    }
    info.skipped = true;
    return info;
  }
  double factor = 1;
  if (options.clip_norm > 0) factor = std::min(1.0, options.clip_norm / (info.grad_norm + 1e-6));
  optimizer_time.time(
      [&] { update->apply(reducer, used, lr.value_or(update->default_lr()), factor); });
  gatherer.publish();
  return info;
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
    } catch (const std::exception&) {
    }
  }
  impl_->detach();
}

void Engine::begin(const Begin& begin) {
  Impl& impl = *impl_;
  impl.begin_step(begin.micro_batches > 0 ? begin.micro_batches : impl.options.micro_batches);
  if (!begin.tokens) return;
  impl.scale = 0;  // should the exchange fail
  const at::Tensor tokens = at::full({1}, *begin.tokens, at::dtype(at::kDouble));
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "tokens";
  const comm::Work work = impl.group.all_reduce(tokens, call);
  impl.reducer.exposed().time([&] { work.wait(); });
  const double total = tokens.item<double>();
  if (!(total >= 0) || !std::isfinite(total)) {
    throw UsageError(str("begin: the ranks have ", total, " tokens in all, wanted 0 or more"));
  }
  impl.scale = total > 0 ? 1.0 / total : 0.0;
}

void Engine::backward(const at::Tensor& loss) { impl_->backward(loss); }
StepInfo Engine::step(std::optional<double> lr) { return impl_->step(lr); }
void Engine::finish_reduction() { impl_->finish_reduction(); }
void Engine::discard() {
  impl_->finish_reduction();  // the other ranks may wait for this one's gradients
  impl_->gatherer.begin_update();
  impl_->stepping = impl_->failed = false;
  impl_->depth = 0;
  for (auto& pass : impl_->passes) pass.leaves_due = pass.entries = 0;
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
