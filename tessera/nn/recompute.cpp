#include "tessera/nn/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/pass.h"
#include "tessera/nn/recorder.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

// Position of this thread inside the backward of recomputed segments.
struct Position {
  int depth = 0;
  const void* segment = nullptr;
};
thread_local Position position;
thread_local bool recomputing = false;  // value of is_recomputing()

// Marks this thread as recomputing while it lives.
class RecomputingScope {
 public:
  RecomputingScope() : before_(std::exchange(recomputing, true)) {}
  ~RecomputingScope() { recomputing = before_; }
  RecomputingScope(const RecomputingScope&) = delete;
  RecomputingScope& operator=(const RecomputingScope&) = delete;

 private:
  const bool before_;
};

// State of the generators that a function of these tensors may draw from.
class RandomState {
 public:
  explicit RandomState(at::TensorList tensors) {
    generators_.push_back(at::detail::getDefaultCPUGenerator());
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.is_cuda()) continue;
      // A CUDA graph draws new random numbers at every launch, and the state of its generator
      // cannot be read. Code that captures a graph ensures that nothing draws from it.
      if (gpu::recording(tensor)) continue;
      const at::Generator& generator = at::globalContext().defaultGenerator(tensor.device());
      if (generator != generators_.back()) generators_.push_back(generator);
    }
    for (at::Generator& generator : generators_) {
      std::lock_guard lock(generator.mutex());
      states_.push_back(generator.get_state());
    }
  }

  void restore() {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      std::lock_guard lock(generators_[i].mutex());
      generators_[i].set_state(states_[i]);
    }
  }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// [Note: casts] State of torch's autocast at construction. The second run of a segment casts as the
// first did, wherever backward is called. Neither run caches its casts of parameters: those of the
// first run have no graph, so a cached one that is used in the second run, or after the segment,
// would get no gradient.
class Casts {
 public:
  Casts() {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      modes_[i] = {at::autocast::is_autocast_enabled(kDevices[i]),
                   at::autocast::get_autocast_dtype(kDevices[i])};
    }
  }
  void set() const {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], modes_[i].first);
      at::autocast::set_autocast_dtype(kDevices[i], modes_[i].second);
    }
  }

 private:
  static constexpr std::array<at::DeviceType, 2> kDevices = {at::kCPU, at::kCUDA};
  std::array<std::pair<bool, at::ScalarType>, 2> modes_;
};

// Applies the given casts, without caching them, while it lives.
class CastsScope {
 public:
  explicit CastsScope(const Casts& casts) {
    casts.set();
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~CastsScope() {
    at::autocast::set_autocast_cache_enabled(remembered_);
    before_.set();
  }
  CastsScope(const CastsScope&) = delete;
  CastsScope& operator=(const CastsScope&) = delete;

 private:
  const Casts before_;
  const bool remembered_ = at::autocast::is_autocast_cache_enabled();
};

// Recomputed call, saved between forward and backward.
struct Segment : torch::CustomClassHolder {
  TensorFunction f;
  const void* name = nullptr;
  std::optional<Recorder> recorder;
  std::optional<RandomState> random;
  c10::intrusive_ptr<DeferredGradients> deferral = DeferredGradients::current();
  std::shared_ptr<const Pass> pass = current_pass();
  const Casts casts = {};

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    const CastsScope as_the_first(casts);
    if (!recorder) return f(std::move(inputs));
    std::vector<at::Tensor> outputs;
    recorder->run([&] { outputs = f(std::move(inputs)); });
    recorder->watch(outputs);
    return outputs;
  }
};

// Returns the version counters, which detect changes in place.
std::vector<std::int64_t> versions_of(at::TensorList tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  }
  return versions;
}

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                c10::intrusive_ptr<Segment> segment,
                                                const at::Tensor& /*wants_grad*/,
                                                at::TensorList inputs) {
    segment->random.emplace(inputs);
    const std::vector<std::int64_t> before = versions_of(inputs);
    std::vector<at::Tensor> outputs = segment->run(inputs.vec());
    if (versions_of(inputs) != before) {
      throw UsageError(
          "A recomputed segment changed one of its inputs in place. Backward runs the segment "
          "again and needs the original input. Change a copy (x.clone()), or do not recompute this "
          "segment.");
    }
    context->save_for_backward(inputs.vec());
    context->saved_data["segment"] = c10::IValue::make_capsule(segment);
    context->set_materialize_grads(false);
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    refuse_second_derivatives("a recomputed segment");
    auto capsule = context->saved_data["segment"].toCapsule();
    auto* segment = static_cast<Segment*>(capsule.get());
    if (!segment->random) {
      throw UsageError(
          "Backward ran twice through a recomputed segment, which keeps its inputs for one "
          "backward only.");
    }
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      if (!saved.defined()) {
        inputs.emplace_back();
        continue;
      }
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    std::vector<at::Tensor> outputs;
    RandomState now(inputs);
    segment->random->restore();
    segment->random.reset();
    {
      const at::AutoGradMode with_grad(true);
      const DeferredGradients::Scope deferring(segment->deferral);
      const PassScope same(segment->pass);
      const RecomputingScope recomputing_now;
      if (segment->recorder) segment->recorder->replay();
      outputs = segment->run(inputs);
      segment->recorder.reset();
    }
    now.restore();
    torch::autograd::variable_list roots, root_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !grads[i].defined()) continue;
      roots.push_back(std::move(outputs[i]));
      root_grads.push_back(grads[i]);
    }
    outputs.clear();
    grads.clear();
    if (!roots.empty()) {
      const Position outer = std::exchange(position, Position{position.depth + 1, segment->name});
      struct Restore {
        Position outer;
        ~Restore() { position = outer; }
      } restore{outer};
      torch::autograd::backward(roots, root_grads);
    }
    // Gradients for the segment itself, the tensor that requires a gradient, and the inputs.
    torch::autograd::variable_list result(2);
    for (const at::Tensor& input : inputs) {
      result.push_back(input.defined() && input.requires_grad() ? input.grad() : at::Tensor());
    }
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> recompute_tensors(Recompute mode, TensorFunction f,
                                          std::vector<at::Tensor> inputs, const void* segment) {
  if (mode == Recompute::none || !at::GradMode::is_enabled()) return f(std::move(inputs));
  // An enclosing selective segment already keeps these products and expects them again.
  if (mode == Recompute::selective && Recorder::current() != nullptr) {
    return f(std::move(inputs));
  }
  auto state = c10::make_intrusive<Segment>();
  state->f = std::move(f);
  state->name = segment;
  if (mode == Recompute::selective) state->recorder.emplace();
  // The parameters used by f are not arguments: without this tensor, a function of inputs that need
  // no gradient would appear to need none itself.
  const at::Tensor wants_grad = at::empty({0}).set_requires_grad(true);
  return RecomputeFunction::apply(state, wants_grad, at::TensorList(inputs));
}

bool is_recomputing() { return recomputing; }
int recomputing_depth() { return position.depth; }
const void* recomputing_segment() { return position.segment; }

std::vector<at::Tensor> keep_in_selective(const char* name, at::TensorList operands,
                                          const std::function<std::vector<at::Tensor>()>& compute) {
  Recorder* recorder = Recorder::current();
  if (recorder == nullptr) return compute();
  Recorder::Call call{name, {}};
  for (const at::Tensor& operand : operands) call.add(operand);
  return recorder->results(std::move(call), compute);
}

}  // namespace tessera::nn
