// Any elementwise optimizer of torch::optim, on this rank's shards.

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>
#include <tuple>
#include <typeinfo>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/zero/optimizers.h"
#include "tessera/zero/torch_states.h"

namespace tessera::zero {
namespace {

template <typename... Known>
double* weight_decay_of(torch::optim::OptimizerOptions& options) {
  double* decay = nullptr;
  const auto look = [&](auto* known) {
    if (known != nullptr) decay = &known->weight_decay();
  };
  (look(dynamic_cast<Known*>(&options)), ...);
  return decay;
}

// Returns the weight decay of a parameter group; null for unknown optimizers.
double* weight_decay_of(torch::optim::OptimizerParamGroup& group) {
  using namespace torch::optim;
  return weight_decay_of<AdamWOptions, AdamOptions, SGDOptions, RMSpropOptions, AdagradOptions>(
      group.options());
}

// Returns the settings of an optimizer as text; "" if its options are not of type T.
template <typename T>
std::string known_settings(const torch::optim::OptimizerOptions& options) {
  const auto* known = dynamic_cast<const T*>(&options);
  if (known == nullptr) return "";
  std::string text = str(", weight_decay ", known->weight_decay());
  if constexpr (requires { known->betas(); }) {
    text += str(", betas ", std::get<0>(known->betas()), " ", std::get<1>(known->betas()));
  }
  if constexpr (requires { known->eps(); }) text += str(", eps ", known->eps());
  if constexpr (requires { known->momentum(); }) text += str(", momentum ", known->momentum());
  if constexpr (requires { known->alpha(); }) text += str(", alpha ", known->alpha());
  return text;
}

class TorchUpdate final : public Update {
 public:
  TorchUpdate(const TorchOptimizer& how, const UpdateContext& context) : Update(context) {
    if (context.options.layout.param == 2 && context.options.layout.master == 0) {
      throw UsageError(str("layout ", quote(context.options.layout.name),
                           " requires stochastic rounding, which optimizers of torch::optim do not "
                           "support. Use zero::AdamW or zero::SGD, or the layout bf16"));
    }
    const memory::OwnerScope owner(buffers_.ledger());
    const memory::CategoryScope scope(MemoryCategory::optimizer);
    std::map<std::tuple<bool, double>, std::vector<std::size_t>> groups;
    values_.resize(plan_.params.size());
    group_of_.resize(plan_.params.size());
    fresh_.resize(plan_.params.size());
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      if (p.bucket < 0) continue;
      // All ranks have the same groups, even if this rank owns no elements of one.
      auto& members = groups[{p.policy.decay, p.policy.lr_scale}];
      if (held(p).size == 0) continue;
      const at::Tensor master = master_shard(static_cast<int>(i));
      const at::Tensor flat =
          master.defined() ? master : gatherer_.param_shard(static_cast<int>(i));
      values_[i] = flat.detach().requires_grad_(true);
      members.push_back(i);
    }
    std::vector<torch::optim::OptimizerParamGroup> list;
    for (const auto& [key, members] : groups) {
      std::vector<at::Tensor> tensors;
      for (const std::size_t i : members) {
        tensors.push_back(values_[i]);
        group_of_[i] = list.size();
      }
      list.emplace_back(std::move(tensors));
      decays_.push_back(std::get<0>(key));
      lr_scales_.push_back(std::get<1>(key));
    }
    optimizer_ = how(std::move(list));
    if (optimizer_ == nullptr || optimizer_->param_groups().size() != lr_scales_.size()) {
      throw UsageError(
          "The function in Options::optimizer must return an optimizer with exactly the parameter "
          "groups that it was given");
    }
    for (std::size_t g = 0; g < decays_.size(); ++g) {
      double* const decay = weight_decay_of(optimizer_->param_groups()[g]);
      if (decay == nullptr && !decays_[g] && decays_.size() > 1) {
        throw UsageError(
            "Some parameters must not decay (ParamPolicy::decay = false), but the engine cannot "
            "set the weight decay of this optimizer. Use a policy with the same decay for all "
            "parameters");
      }
      if (decay != nullptr && !decays_[g]) *decay = 0;
      default_decays_.push_back(decay != nullptr ? *decay : 0);
    }
    // There are no groups if this part of the model is frozen.
    if (!decays_.empty()) default_lr_ = optimizer_->param_groups().front().options().get_lr();
  }

  std::vector<std::pair<std::string, at::Tensor>> states(int index) const override {
    const auto i = static_cast<std::size_t>(index);
    const TorchStates& known = kind();
    if (!values_[i].defined()) return {};
    if (const auto found = optimizer_->state().find(key(i)); found != optimizer_->state().end()) {
      return known.tensors(*found->second);
    }
    // Kept outside the optimizer until resume(): some optimizers detect their first step by the
    // missing state, and treat it differently.
    if (fresh_[i] == nullptr) {
      const memory::OwnerScope owner(buffers_.ledger());
      const memory::CategoryScope scope(MemoryCategory::optimizer);
      fresh_[i] = known.fresh(optimizer_->param_groups()[group_of_[i]].options(), values_[i]);
    }
    return fresh_[i] == nullptr ? TorchStates::Tensors() : known.tensors(*fresh_[i]);
  }

  std::string settings() const override {
    using namespace torch::optim;
    const torch::optim::Optimizer& optimizer = *optimizer_;
    // Groups are not included: they may differ between pipeline stages. Policies are compared
    // separately.
    const OptimizerOptions& options = optimizer.defaults();
    return str(c10::demangle(typeid(optimizer).name()), " (lr ", options.get_lr(),
               known_settings<AdamWOptions>(options), known_settings<AdamOptions>(options),
               known_settings<SGDOptions>(options), known_settings<RMSpropOptions>(options),
               known_settings<AdagradOptions>(options), ")");
  }

  void resume(std::int64_t steps, std::vector<std::int64_t> updates) override {
    Update::resume(steps, std::move(updates));
    const TorchStates& known = kind();
    auto& all = optimizer_->state();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!values_[i].defined()) continue;
      if (updates_[i] == 0 && !known.made_at_start()) {
        all.erase(key(i));
        continue;
      }
      states(static_cast<int>(i));
      if (fresh_[i] != nullptr) all[key(i)] = std::move(fresh_[i]);
      if (const auto found = all.find(key(i)); found != all.end()) {
        known.set_count(*found->second, updates_[i]);
      }
    }
  }

  bool sets_weight_decay() const override {
    auto& groups = optimizer_->param_groups();
    return groups.empty() || weight_decay_of(groups.front()) != nullptr;
  }

  void apply(const Reducer& reducer, const std::vector<bool>& used, const StepSettings& settings,
             double scale) override {
    const memory::OwnerScope owner(buffers_.ledger());
    ++steps_;
    // The optimizer has one learning rate per group. If the scales of this step differ within a
    // group, it is called once for each scale: parameters without a gradient are not updated.
    std::map<double, std::vector<std::size_t>> by_scale;
    bool grouped = true;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (plan_.params[i].bucket >= 0 && used[i]) ++updates_[i];
      if (!values_[i].defined()) continue;
      values_[i].mutable_grad().reset();
      if (!used[i]) continue;
      fresh_[i].reset();
      by_scale[settings.lr_scales[i]].push_back(i);
      grouped = grouped && settings.lr_scales[i] == plan_.params[i].policy.lr_scale;
    }
    for (std::size_t g = 0; g < decays_.size(); ++g) {
      double* const decay = weight_decay_of(optimizer_->param_groups()[g]);
      if (decay != nullptr && decays_[g]) {
        *decay = settings.weight_decay.value_or(default_decays_[g]);
      }
    }
    const auto give_gradients = [&](const std::vector<std::size_t>& params) {
      for (const std::size_t i : params) {
        at::Tensor& grad = values_[i].mutable_grad();
        grad = reducer.grad_shard(static_cast<int>(i)).to(values_[i].scalar_type());
        if (scale != 1) grad = grad * scale;
      }
    };
    const auto run = [&](const auto& scale_of_group) {
      for (std::size_t g = 0; g < lr_scales_.size(); ++g) {
        optimizer_->param_groups()[g].options().set_lr(settings.lr * scale_of_group(g));
      }
      // Optimizers allocate their states in the first step.
      const memory::CategoryScope scope(MemoryCategory::optimizer);
      optimizer_->step();
      for (const at::Tensor& value : values_) {
        if (value.defined()) value.mutable_grad().reset();
      }
    };
    if (grouped) {
      for (const auto& [own, params] : by_scale) give_gradients(params);
      run([&](std::size_t g) { return lr_scales_[g]; });
    } else {
      for (const auto& [own, params] : by_scale) {
        give_gradients(params);
        run([&](std::size_t) { return own; });
      }
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].defined() && used[i] && master_shard(static_cast<int>(i)).defined()) {
        gatherer_.param_shard(static_cast<int>(i)).copy_(values_[i]);
      }
    }
  }

 private:
  const TorchStates& kind() const {
    if (kind_ == nullptr) kind_ = known_states(*optimizer_);
    return *kind_;
  }
  void* key(std::size_t i) const { return values_[i].unsafeGetTensorImpl(); }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  mutable std::unique_ptr<TorchStates> kind_;  // made on demand: unknown optimizers can still train
  std::vector<at::Tensor> values_;             // per parameter: tensor that the optimizer updates
  std::vector<std::size_t> group_of_;          // per parameter
  // Per parameter: state for saving or loading before the first update.
  mutable std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> fresh_;
  std::vector<bool> decays_;  // by group, like the members below
  std::vector<double> default_decays_;
  std::vector<double> lr_scales_;
};

}  // namespace

std::unique_ptr<Update> make_torch_update(const TorchOptimizer& how, const UpdateContext& context) {
  return std::make_unique<TorchUpdate>(how, context);
}

}  // namespace tessera::zero
