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
#include "tessera/zero/module_buffers.h"
#include "tessera/zero/same_model.h"

namespace tessera::zero {
namespace {

// Hook that autograd calls after it has accumulated a parameter's gradient. Operations that compute
// gradients can ask it for the memory to write to ([Note: gradient places]).
template <typename Impl>
struct GradHook final : torch::autograd::PostAccumulateGradHook, nn::GradientPlace {
  GradHook(std::weak_ptr<Impl> owner, int index) : engine(std::move(owner)), param(index) {}
  void operator()(const torch::autograd::Variable&) override {
    if (const auto alive = engine.lock()) alive->on_gradient(param);
  }
  Place take() override {
    const auto alive = engine.lock();
    return alive ? alive->take_place(param) : Place();
  }
  std::weak_ptr<Impl> engine;
  int param;
};

template <typename Impl>
struct UnitWatch final : nn::UnitObserver {
  UnitWatch(std::weak_ptr<Impl> owner, int index, std::optional<at::ScalarType> cast)
      : engine(std::move(owner)), unit(index), inputs(cast) {}
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
  std::optional<at::ScalarType> input_type() const override { return inputs; }
  std::weak_ptr<Impl> engine;
  int unit;
  std::optional<at::ScalarType> inputs;
};

// [Note: cast inputs] in options.h.
std::optional<at::ScalarType> cast_of_inputs(const Plan& plan, int unit, const Options& options) {
  if (!options.cast_inputs || options.layout.param != 2) return std::nullopt;
  const at::ScalarType narrow = options.layout.fp16() ? at::kHalf : at::kBFloat16;
  for (const Param& param : plan.params) {
    const at::ScalarType type = plan.spaces[static_cast<std::size_t>(param.space)].dtype;
    if (type == narrow && (unit == 0 || param.unit == unit)) return type;
  }
  return std::nullopt;
}

const EngineOptions& checked(const EngineOptions& options, const DataGroups& groups) {
  sharding_of_stage(options.stage);
  const auto require = [](bool good, const std::string& problem) {
    if (!good) throw UsageError(problem);
  };
  require(options.stage > 0 || !groups.hybrid(),
          str("dp_replicate ", groups.replicate.size(),
              ": requires stage 1, 2 or 3, which shard state. At stage 0 every rank holds all of "
              "it"));
  const auto& known = state_layouts();
  require(std::find(known.begin(), known.end(), options.layout) != known.end(),
          str("layout ", quote(options.layout.name),
              " is for planning only. The engine supports bf16, bf16-fp32grad, bf16-nomaster, fp16 "
              "and fp32"));
  require(options.micro_batches >= 1,
          str("micro_batches: got ", options.micro_batches, ", must be at least 1"));
  require(options.bucket_bytes >= 0,
          str("bucket_bytes: got ", options.bucket_bytes,
              ", must be a number of bytes, or 0 to choose it by the model"));
  require(options.clip_norm >= 0 && std::isfinite(options.clip_norm),
          str("clip_norm: got ", options.clip_norm,
              ", must be finite and greater than 0, or 0 to disable clipping"));
  const bool hooked = options.reduce_hook != nullptr;
  require(!hooked || !groups.hybrid(),
          str("reduce_hook: got dp_replicate ", groups.replicate.size(),
              ", must be 1. Gradients of several replicas are reduced in two parts"));
  require(!hooked ||
              options.reduce.value_or(default_reduce_policy(options.stage)) == ReducePolicy::last,
          str("reduce_hook: gradients must be reduced once per step, not for each micro-batch. Set "
              "reduce = ReducePolicy::last (stage ",
              options.stage, ")"));
  if (options.grad_compression == GradCompression::none) return options;
  require(!hooked, str("reduce_hook: got grad_compression ", name(options.grad_compression),
                       ", must be none. Compress in the hook"));
  require(
      options.layout.grad == 4,
      str("grad_compression ", name(options.grad_compression), ": got layout ", options.layout.name,
          ", whose gradients have 16 bits. Use a layout with fp32 gradients: fp32 or "
          "bf16-fp32grad"));
  return options;
}

// Returns the number of trained parameters of each unit.
std::vector<int> trainable_of_units(const Plan& plan) {
  std::vector<int> counts(plan.units.size());
  for (const Param& param : plan.params) {
    if (param.bucket >= 0) ++counts[static_cast<std::size_t>(param.unit)];
  }
  return counts;
}

}  // namespace

ParamPolicy default_policy(const std::string&, const at::Tensor& param) {
  ParamPolicy policy;
  policy.decay = param.dim() >= 2;
  return policy;
}

Engine::Impl::Impl(std::shared_ptr<torch::nn::Module> m, DataGroups g, EngineOptions o)
    : model(std::move(m)),
      groups(std::move(g)),
      group(groups.all),
      options(checked(o, groups)),
      plan(same_on_all_ranks(make_plan(*model, options, groups), *model, group, options)),
      buffers(options.ledger ? options.ledger : memory::current_ledger()),
      gatherer(plan, options, groups, buffers),
      reducer(plan, options, groups, buffers),
      update(make_update({plan, options, groups, buffers, gatherer})),
      passes(trainable_of_units(plan), plan.model_chunks,
             options.reduce.value_or(default_reduce_policy(options.stage))),
      loss(group),
      written(plan.params.size()) {
  for (const Param& param : plan.params) {
    if (param.bucket < 0) continue;
    auto* const hook = torch::autograd::impl::post_acc_grad_hooks(param.tensor).get();
    if (hook == nullptr) continue;
    throw UsageError(dynamic_cast<nn::GradientPlace*>(hook) != nullptr
                         ? "This model already has an engine. Destroy it before making another"
                         : str("parameter ", quote(param.name),
                               " has a post-accumulate hook, and the engine needs to set its own. "
                               "Remove the hook (set_post_acc_grad_hooks), or use register_hook"));
  }
  device_problem = StepOnDevice::problem(plan, *update);
  if (options.layout.fp16() && !device_problem.empty()) {
    throw UsageError(str("layout fp16 requires steps that run on a GPU, which scale the loss, but ",
                         device_problem, ". Use the layout bf16"));
  }
  if (device_problem.empty()) {
    device = std::make_unique<StepOnDevice>(UpdateContext{plan, options, groups, buffers, gatherer},
                                            *update, reducer);
  }
  // A master copy starts with the unrounded values.
  gatherer.fill(options, [this](int index, std::int64_t at, const at::Tensor& values) {
    write_master(index, at, values);
  });
}

void Engine::Impl::write_master(int index, std::int64_t at, const at::Tensor& values) const {
  update->write_master(index, at, values);
}

void Engine::Impl::attach() {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const auto unit = static_cast<int>(u);
    observers.push_back(std::make_shared<UnitWatch<Impl>>(weak_from_this(), unit,
                                                          cast_of_inputs(plan, unit, options)));
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
  nn::release_units(*model);
  for (const Param& param : plan.params) {
    if (param.bucket >= 0) {
      torch::autograd::impl::set_post_acc_grad_hooks(param.tensor, nullptr);
      param.tensor.mutable_grad().reset();
    }
  }
  gatherer.detach();
}

void Engine::Impl::close() noexcept {
  // Waits for parameters in flight, so that the model can be used afterwards. Does not wait while
  // an exception unwinds; a failure here has been reported already.
  if (std::uncaught_exceptions() == 0) {
    try {
      gatherer.wait_all();
    } catch (...) {
    }
  }
  // If this fails, remaining hooks do nothing: they hold the engine by weak_ptr.
  try {
    detach();
  } catch (...) {
  }
}

std::string Engine::Impl::model_name() const { return quote(model->name()); }

// Ranks with the same parameters must update them in the same way. Ranks with other parts of the
// model must use the same optimizer, because copies of a parameter in several parts must stay
// equal.
void Engine::Impl::check_same_settings() const {
  if (plan.buckets.empty() && options.axes.group.size() == 1) return;
  std::string text;
  if (!plan.buckets.empty()) {
    text =
        str("optimizer ", update->settings(), "\nclip_norm ", options.clip_norm, "\non_non_finite ",
            options.on_non_finite == OnNonFinite::stop ? "stop" : "skip", "\n");
  }
  const char* const todo = "Pass the same Options on every rank";
  std::string policies, of_experts;
  for (const Param& param : plan.params) {
    (plan.space_of(param).of_experts ? of_experts : policies) +=
        str("policy of ", quote(param.name), ": lr_scale ", param.policy.lr_scale,
            param.policy.decay ? ", decay" : ", no decay",
            param.policy.elementwise ? ", elementwise" : "",
            param.policy.keep_fp32 ? ", keep_fp32" : "", "\n");
  }
  expect_same_lines(group, text + policies, "settings", todo);
  expect_same_lines(options.axes.group, text, "settings", todo);
  if (plan.expert_groups) {
    expect_same_lines(plan.expert_groups->all, of_experts, "settings", todo);
  }
}

// Throws on all ranks if parameters or buffers differ between ranks. At stage 3 each parameter
// element has one owner, so parameters cannot differ.
void Engine::Impl::check_start() {
  check_same_settings();
  // There are no other ranks, or their values are simulated.
  if (group.simulated() || group.size() == 1) return;
  if (options.broadcast_start) broadcast_module_buffers(*model, group, reducer.exposed());
  std::uint64_t hash = 0, of_experts = 0;
  Gatherer::Reader reader(gatherer);
  for (std::size_t i = 0; i < plan.params.size() && !gatherer.shards(); ++i) {
    std::uint64_t& mixed = plan.of_expert(i) ? of_experts : hash;
    mixed = mix_bits(mixed, reader.elements(static_cast<int>(i)));
  }
  for (const at::Tensor& buffer : model->buffers()) {
    if (buffer.defined()) hash = mix_bits(hash, buffer);
  }
  expect_same_start(group, hash);
  if (plan.expert_groups) expect_same_start(plan.expert_groups->all, of_experts);
}

void Engine::Impl::enter_forward(int unit, bool differentiable) {
  // Recomputation enters a unit again, inside backward.
  if (passes.in_backward() || visiting > 0) return gatherer.enter_recompute(unit);
  if (unit != 0 && !passes.in_forward() && gatherer.shards()) {
    throw UsageError(str("unit ", quote(plan.units[static_cast<std::size_t>(unit)].name),
                         " was called outside the engine. At stage 3 run the model through the "
                         "engine: train(x) of DataParallel, or nn::observed(engine.root(), …)"));
  }
  if (unit == 0) check_not_replaced("forward");
  passes.enter_forward(unit, at::GradMode::is_enabled(), differentiable);
  gatherer.enter_forward(unit);
}

void Engine::Impl::leave_forward(int unit, bool differentiable) {
  if (passes.in_backward() || visiting > 0) return;
  passes.leave_forward();
  gatherer.leave_forward(unit, differentiable);
  if (unit == 0) gatherer.end_forward();
}

// Throws because a backward pass that this engine did not start reached a trained parameter of its
// model. On a GPU, autograd calls hooks on its own threads, where running() is unknown.
void Engine::Impl::refuse_backward(const std::string& reached) {
  visiting = 0;
  const char* const remedy =
      "Call detach() on its outputs. If gradients must pass through it, call "
      "requires_grad_(false) on its parameters for the duration. To train both models with one "
      "loss, make one engine for a module that holds both";
  if (running() != nullptr) {
    throw UsageError(str("backward() of the engine of model ", running()->model_name(), " reached ",
                         reached, " of model ", model_name(), ", which has an engine of its own. ",
                         remedy));
  }
  throw UsageError(
      str("loss.backward() was called, and reached ", reached, " of model ", model_name(),
          ". The engine must run backward, because it scales the loss and ends the pass: call "
          "train.backward(loss)",
          plan.params.front().tensor.is_cpu()
              ? std::string()
              : str(". If backward() of another engine reached this model: ", remedy)));
}

// [Note: visits] A backward of another engine may pass through this model while its parameters are
// frozen. At stage 3 each unit is gathered for as long as that backward reads it.
void Engine::Impl::enter_backward(int unit) {
  if (!gatherer.shards() || passes.in_backward()) return gatherer.enter_backward(unit);
  const UnitPlan& reached = plan.units[static_cast<std::size_t>(unit)];
  for (const int index : reached.params) {
    const Param& param = plan.params[static_cast<std::size_t>(index)];
    if (param.bucket >= 0 && param.tensor.requires_grad()) {
      refuse_backward(str("parameter ", quote(param.name)));
    }
  }
  ++visiting;
  gatherer.enter_recompute(unit);
}

// A unit's parameters are needed until the gradients of its inputs and of its parameters are
// computed; no other node of the graph reads them. The root's are needed until the pass ends.
void Engine::Impl::leave_backward(int unit) {
  if (visiting > 0) {
    --visiting;
    return gatherer.reshard(unit);
  }
  passes.left_backward(unit);
  if (unit != 0 && passes.unit_done(unit)) gatherer.reshard(unit);
}

// Gradients of deferred passes arrive at any time; finish_pass() processes them together.
nn::GradientPlace::Place Engine::Impl::take_place(int index) {
  if (!passes.in_backward() || passes.deferring() || passes.deferred_open()) return {};
  return reducer.take_place(index, nn::recomputing_depth());
}

void Engine::Impl::on_gradient(int index) {
  if (!passes.in_backward()) {
    if (passes.deferred_open()) return;  // finish_pass() processes it
    refuse_backward(str("parameter ", quote(plan.params[static_cast<std::size_t>(index)].name)));
  }
  const Param& param = plan.params[static_cast<std::size_t>(index)];
  // Autograd also calls the hook if an operation returned no gradient: it arrives later, or never.
  if (!param.tensor.grad().defined()) return;
  // Inside a recomputed segment, while the outer backward holds the place of this gradient:
  // autograd adds the outer result to this gradient and calls the hook again.
  if (reducer.taken_outside(index, nn::recomputing_depth())) return;
  // [Note: last gradient] Outside recomputed segments, autograd sums all uses of a parameter before
  // it calls the hook. Inside, each segment has its own graph: the gradient is known to be complete
  // only if the segment is the parameter's unit and was used once. Otherwise it is complete at the
  // end of the pass.
  const UnitPlan& unit = plan.units[static_cast<std::size_t>(param.unit)];
  const bool last = nn::recomputing_depth() == 0 ||
                    (nn::recomputing_depth() == 1 && unit.hook != nullptr &&
                     nn::recomputing_segment() == unit.hook && passes.uses(param.unit) == 1);
  const bool before = reducer.arrived(index);
  reducer.on_gradient(index, last);
  if (before || !reducer.arrived(index)) return;
  passes.gradient_arrived(param.unit);
  if (param.unit != 0 && passes.unit_done(param.unit)) gatherer.reshard(param.unit);
}

namespace {

const comm::Mesh& with_whole_model(const comm::Mesh& mesh) {
  if (mesh.axes().model_ranks() == 1) return mesh;
  throw UsageError(str(
      "mesh ", mesh.axes().words(" × "),
      ": this engine trains a whole model on every rank, but the mesh cuts the "
      "model or its tokens by tp, cp or pp. Use ParallelModel, or a mesh of dp and dp_replicate"));
}

}  // namespace

Engine::Engine(std::shared_ptr<torch::nn::Module> model, comm::Group group, Options options)
    : Engine(std::move(model), DataGroups(std::move(group)),
             EngineOptions{std::move(options), {}}) {}

Engine::Engine(std::shared_ptr<torch::nn::Module> model, const comm::Mesh& mesh, Options options)
    : Engine(std::move(model), DataGroups(with_whole_model(mesh)),
             EngineOptions{std::move(options), {}}) {}

Engine Engine::of_part(std::shared_ptr<torch::nn::Module> model, DataGroups groups, Options options,
                       ModelAxes axes) {
  return Engine(std::move(model), std::move(groups),
                EngineOptions{std::move(options), std::move(axes)});
}

Engine::Engine(std::shared_ptr<torch::nn::Module> model, DataGroups groups, EngineOptions options) {
  try {
    impl_ = std::make_shared<Impl>(model, std::move(groups), std::move(options));
  } catch (...) {
    nn::release_units(*model);  // restores Sequentials
    throw;
  }
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
  if (impl_ != nullptr) impl_->close();
}

Engine::Engine(Engine&& other) noexcept = default;

Engine& Engine::operator=(Engine&& other) noexcept {
  if (this == &other) return *this;
  if (impl_ != nullptr) impl_->close();
  impl_ = std::move(other.impl_);
  return *this;
}

void Engine::begin(const Begin& begin) {
  if (begin.micro_batches < 0) {
    throw UsageError(str("begin: got ", begin.micro_batches,
                         " micro-batches, must be at least 1, or 0 for Options::micro_batches"));
  }
  impl_->begin_step(begin.micro_batches > 0 ? begin.micro_batches : impl_->options.micro_batches);
  if (begin.tokens) {
    impl_->loss.weigh_by_tokens(*begin.tokens);
    impl_->passes.announce_data();
  }
}

void Engine::backward(const at::Tensor& loss) { impl_->backward(loss, {}, {}); }
void Engine::backward(const at::Tensor& output, const at::Tensor& gradient) {
  impl_->backward(output, gradient, {});
}
void EnginePipeline::backward(const at::Tensor& output, const at::Tensor& gradient,
                              const BackwardPass& pass) {
  engine_.impl_->backward(output, gradient, pass);
}
at::Tensor EnginePipeline::loss_scale() const {
  return engine_.impl_->device ? engine_.impl_->device->loss_scale() : at::Tensor();
}

void EnginePipeline::finish_pass(int model_chunk) { engine_.impl_->finish_pass(model_chunk); }
EnginePipeline Engine::pipeline() { return EnginePipeline(*this); }
EngineGraphs Engine::graphs() { return EngineGraphs(*this); }
PendingStep Engine::start_step(const StepOptions& how) { return impl_->start_step(how); }
PendingStep Engine::start_step(std::optional<double> lr) { return impl_->start_step({.lr = lr}); }
StepInfo Engine::step(const StepOptions& how) { return impl_->start_step(how).get(); }
StepInfo Engine::step(std::optional<double> lr) { return impl_->start_step({.lr = lr}).get(); }
void Engine::finish_reduction() { impl_->finish_reduction(); }
void Engine::discard() { impl_->discard(); }
void Engine::synchronize() { impl_->gatherer.wait_all(); }
void Engine::load_parameters(const torch::nn::Module& from) { impl_->load_parameters(from); }
const std::shared_ptr<nn::UnitObserver>& Engine::root() const { return impl_->observers.front(); }

Engine::NoSync::NoSync(Engine& engine) : impl_(engine.impl_) { impl_->passes.enter_no_sync(); }
Engine::NoSync::~NoSync() { impl_->passes.leave_no_sync(); }

const Options& Engine::options() const { return impl_->options; }
const ModelAxes& Engine::model_axes() const { return impl_->options.axes; }
const comm::Group& Engine::group() const { return impl_->group; }
const DataGroups& Engine::data_groups() const { return impl_->groups; }
std::int64_t Engine::steps() const {
  impl_->fetch_counts();
  return impl_->update->steps();
}
std::string EngineGraphs::problem() const {
  const Engine::Impl& impl = *engine_.impl_;
  if (impl.options.reduce_hook) return "a replay does not call the reduce_hook";
  return impl.device ? impl.device->capture_problem() : impl.device_problem;
}
void EngineGraphs::prepare(const Begin& begin, const StepOptions& options) {
  engine_.impl_->prepare_step(begin, options);
}
PendingStep EngineGraphs::replayed() { return engine_.impl_->replayed(); }
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
