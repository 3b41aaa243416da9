// Optimizers that consist of one rule of kernels/rules.h.

#include "tessera/zero/optimizers.h"

#include "tessera/zero/elementwise.h"

namespace tessera::zero {
namespace {

class RuleUpdate final : public Update {
 public:
  RuleUpdate(const rules::Elementwise& how, const UpdateContext& context)
      : Update(context), rule_(std::visit([](const auto& r) { return rules::Rule(r); }, how)) {
    std::visit(
        [this](const auto& r) {
          default_lr_ = r.lr;
          weight_decay_ = r.weight_decay;
          names_ = r.states();
          settings_ = settings_text(r);
        },
        how);
    for (std::size_t s = 0; s < names_.size(); ++s) states_.push_back(make_state());
  }

  void apply(const Reducer& reducer, const std::vector<bool>& used, const StepSettings& settings,
             double scale) override {
    const at::NoGradGuard no_grad;
    const double decay = settings.weight_decay.value_or(weight_decay_);
    ++steps_;
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      const auto index = static_cast<int>(i);
      if (p.bucket < 0 || !used[i]) continue;
      ++updates_[i];
      if (held(p).size == 0) continue;
      update_shard(rule_, step_of(index, settings.lr_of(index), decay, scale),
                   shard(index, reducer));
    }
  }

  ShardTensors shard(int index, const Reducer& reducer) const override {
    ShardTensors result = tensors(index, reducer);
    if (!states_.empty()) result.a = shard_of_state(states_[0], index);
    if (states_.size() > 1) result.b = shard_of_state(states_[1], index);
    return result;
  }
  const rules::Rule* rule() const override { return &rule_; }
  double weight_decay() const override { return weight_decay_; }
  std::string settings() const override { return settings_; }

  std::vector<std::pair<std::string, at::Tensor>> states(int index) const override {
    std::vector<std::pair<std::string, at::Tensor>> result;
    for (std::size_t s = 0; s < names_.size(); ++s) {
      result.emplace_back(names_[s], shard_of_state(states_[s], index));
    }
    return result;
  }

 private:
  const rules::Rule rule_;
  double weight_decay_ = 0;
  rules::States names_;
  std::string settings_;
  std::vector<std::vector<Buffer>> states_;
};

}  // namespace

std::unique_ptr<Update> make_rule_update(const rules::Elementwise& how,
                                         const UpdateContext& context) {
  return std::make_unique<RuleUpdate>(how, context);
}

}  // namespace tessera::zero
