#include "tessera/planner/expert_settings.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kUsualPerToken = 2;
constexpr double kUsualBalanceLoss = 0.01;

}  // namespace

bool resizes_experts(const RunConfig& s) {
  return std::max({s.experts, s.experts_per_token, s.expert_ffn, s.shared_expert_ffn}) > 0 ||
         s.dense_layers >= 0 || s.router_scores.has_value();
}

std::string_view given_for_experts(const RunConfig& s) {
  const std::pair<std::string_view, bool> given[] = {
      {"experts-per-token", s.experts_per_token > 0},
      {"expert-ffn", s.expert_ffn > 0},
      {"shared-expert-ffn", s.shared_expert_ffn > 0},
      {"dense-layers", s.dense_layers >= 0},
      {"router-scores", s.router_scores.has_value()},
      {"balance-loss", s.balance_loss != kAutomatic},
      {"z-loss", s.z_loss != kAutomatic},
      {"balance-bias-rate", s.balance_bias_rate != kAutomatic},
      {"router-jitter", s.router_jitter != kAutomatic},
      {"expert-capacity", s.expert_capacity != kAutomatic}};
  for (const auto& [flag, is_given] : given) {
    if (is_given) return flag;
  }
  return "";
}

void apply_experts(ModelShape& m, const RunConfig& s) {
  Experts& experts = m.experts;
  if (!experts.any() && s.experts == 0) {
    const std::string_view flag = given_for_experts(s);
    if (flag.empty()) return;
    throw UsageError(Flag(flag), str("needs a model with experts. Give --experts, or a --model "
                                     "that has them, such as mixtral-8x7b"));
  }
  if (!experts.any()) {
    experts.per_token = std::min(kUsualPerToken, s.experts);
    experts.width = m.ffn;
    experts.balance_loss = kUsualBalanceLoss;
    m.family = Family::none;  // the family of the model without experts has no names for them
  }
  if (s.experts > 0) experts.count = s.experts;
  if (s.experts_per_token > 0) experts.per_token = s.experts_per_token;
  if (s.expert_ffn > 0) experts.width = s.expert_ffn;
  if (s.shared_expert_ffn > 0) experts.shared_width = s.shared_expert_ffn;
  if (s.dense_layers >= 0) experts.dense_layers = s.dense_layers;
  if (s.dense_layers < 0) experts.dense_layers = std::min(experts.dense_layers, m.layers);
  if (s.router_scores) experts.scores = *s.router_scores;
  const auto set = [](double& value, double given) {
    if (given != kAutomatic) value = given;
  };
  set(experts.balance_loss, s.balance_loss);
  set(experts.z_loss, s.z_loss);
  set(experts.bias_rate, s.balance_bias_rate);
  if (experts.bias_rate > 0) experts.selection_bias = true;
  set(experts.jitter, s.router_jitter);
  set(experts.capacity, s.expert_capacity);
}

void resolve_experts(const RunConfig& q) {
  const std::int64_t count = q.model.experts.count;
  if (!(q.expert_imbalance >= 1)) {
    throw UsageError(Flag("expert-imbalance"),
                     str("got ", q.expert_imbalance, "; must be at least 1, for equal loads"));
  }
  if (count == 0 && q.ep() > 1) {
    throw UsageError(Flag("ep"), str("got ", q.ep(), ", but ",
                                     q.state_only() ? "a model given by --params has no experts"
                                                    : "the model has no experts",
                                     ". Omit --ep, or give --experts"));
  }
  if (count == 0 && q.expert_imbalance > 1) {
    throw UsageError(Flag("expert-imbalance"),
                     str("got ", q.expert_imbalance, ", but the model has no experts; omit it"));
  }
  if (q.ep() > std::max<std::int64_t>(1, count)) {
    throw UsageError(Flag("ep"), str("got ", q.ep(), ", but each layer has ", count,
                                     " experts; must be at most their number"));
  }
  q.axes.check_experts();
}

}  // namespace tessera::planner
