// Any elementwise optimizer of torch::optim, on this rank's shards.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>
#include <tuple>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/zero/optimizers.h"

namespace tessera::zero {
namespace {

template <typename T>
bool stop_decay_of(torch::optim::OptimizerOptions& options) {
  auto* known = dynamic_cast<T*>(&options);
  if (known != nullptr) known->weight_decay(0);
  return known != nullptr;
}

// For the group of parameters that do not decay.
void stop_decay(torch::optim::OptimizerOptions& options, bool others_decay) {
  using namespace torch::optim;
  if (stop_decay_of<AdamWOptions>(options) || stop_decay_of<AdamOptions>(options) ||
      stop_decay_of<SGDOptions>(options) || stop_decay_of<RMSpropOptions>(options) ||
      stop_decay_of<AdagradOptions>(options) || !others_decay) {
    return;
  }
  throw UsageError(
      "some parameters are not to decay (ParamPolicy::decay), which the engine cannot "
      "tell this optimizer; give a policy that treats all alike");
}

class TorchUpdate final : public Update {
 public:
  TorchUpdate(const TorchOptimizer& how, const UpdateContext& context) : Update(context) {
    if (context.options.layout.param == 2 && context.options.layout.master == 0) {
      throw UsageError(str("layout ", quote(context.options.layout.name),
                           " rounds stochastically, which an optimizer of torch::optim does not; "
                           "use zero::AdamW or zero::SGD, or the layout bf16"));
    }
    const memory::OwnerScope owner(buffers_.ledger());
    const memory::CategoryScope scope(MemoryCategory::optimizer);
    std::map<std::tuple<bool, double>, std::vector<at::Tensor>> groups;
    values_.resize(plan_.params.size());
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      if (p.bucket < 0) continue;
      // Groups are the same on all ranks, also where this one owns nothing of them.
      auto& tensors = groups[{p.policy.decay, p.policy.lr_scale}];
      if (held(p).size == 0) continue;
      const at::Tensor master = master_shard(static_cast<int>(i));
      const at::Tensor flat =
          master.defined() ? master : gatherer_.param_shard(static_cast<int>(i));
      values_[i] = flat.detach().requires_grad_(true);
      tensors.push_back(values_[i]);
    }
    std::vector<torch::optim::OptimizerParamGroup> list;
    for (const auto& [key, tensors] : groups) {
      list.emplace_back(tensors);
      decays_.push_back(std::get<0>(key));
      lr_scales_.push_back(std::get<1>(key));
    }
    optimizer_ = how(std::move(list));
    if (optimizer_ == nullptr || optimizer_->param_groups().size() != lr_scales_.size()) {
      throw UsageError(
          "the function in Options::optimizer must return an optimizer of exactly the "
          "groups that it was given");
    }
    for (std::size_t g = 0; g < decays_.size(); ++g) {
      if (!decays_[g]) stop_decay(optimizer_->param_groups()[g].options(), decays_.size() > 1);
    }
    default_lr_ = optimizer_->param_groups().front().options().get_lr();
  }

  std::vector<std::pair<std::string, at::Tensor>> states(int) const override {
    throw UsageError(
        "the state of an optimizer of torch::optim cannot be saved, since the engine does not know "
        "its parts; use zero::AdamW or zero::SGD");
  }

  void apply(const Reducer& reducer, const std::vector<bool>& used, double lr,
             double scale) override {
    const memory::OwnerScope owner(buffers_.ledger());
    ++steps_;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!values_[i].defined()) continue;
      at::Tensor& grad = values_[i].mutable_grad();
      grad.reset();
      if (used[i]) {
        grad = reducer.grad_shard(static_cast<int>(i)).to(values_[i].scalar_type()) * scale;
      }
    }
    for (std::size_t g = 0; g < lr_scales_.size(); ++g) {
      optimizer_->param_groups()[g].options().set_lr(lr * lr_scales_[g]);
    }
    {
      // Its states are made in its first step.
      const memory::CategoryScope scope(MemoryCategory::optimizer);
      optimizer_->step();
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!values_[i].defined()) continue;
      values_[i].mutable_grad().reset();
      if (used[i] && master_shard(static_cast<int>(i)).defined()) {
        gatherer_.param_shard(static_cast<int>(i)).copy_(values_[i]);
      }
    }
  }

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> values_;  // per parameter: what the optimizer holds
  std::vector<bool> decays_;
  std::vector<double> lr_scales_;
};

}  // namespace

std::unique_ptr<Update> make_torch_update(const TorchOptimizer& how, const UpdateContext& context) {
  return std::make_unique<TorchUpdate>(how, context);
}

}  // namespace tessera::zero
