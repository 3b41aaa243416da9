// Muon: momentum with orthogonalized matrices.

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/zero/elementwise.h"
#include "tessera/zero/matrix_exchange.h"
#include "tessera/zero/optimizers.h"

namespace tessera::zero {

// Five Newton–Schulz iterations X ← aX + (bA + cA²)X, A = XXᵀ, with the coefficients of Jordan et
// al., 2024, which quickly bring all singular values near 1 (0.7 to 1.2). In fp32 on the CPU; in
// bf16 elsewhere, which is many times faster and, as the authors found, equally good.
constexpr double kNewtonA = 3.4445, kNewtonB = -4.7750, kNewtonC = 2.0315;
constexpr int kNewtonIterations = 5;

at::Tensor orthogonalized(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);  // transposed, so that A is the smaller one
  at::Tensor x = matrix / (matrix.norm() + 1e-7);
  if (!matrix.is_cpu()) x = x.to(at::kBFloat16);
  x = (tall ? x.t() : x).contiguous();
  for (int i = 0; i < kNewtonIterations; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kNewtonB, kNewtonC), x, kNewtonA);
  }
  return (tall ? x.t() : x).to(matrix.scalar_type());
}

at::Tensor newton_schulz(at::Tensor x) {
  for (int i = 0; i < kNewtonIterations; ++i) {
    const at::Tensor gram = at::bmm(x, x.transpose(1, 2));
    x = at::baddbmm(x, at::baddbmm(gram, gram, gram, kNewtonB, kNewtonC), x, kNewtonA);
  }
  return x;
}

double muon_scale(std::int64_t rows, std::int64_t columns) {
  return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
}

namespace {

class MuonUpdate final : public Update {
 public:
  MuonUpdate(const Muon& how, const UpdateContext& context)
      : Update(context),
        how_(how),
        matrices_(context.plan, context.groups.shard, sharded_),
        expert_matrices_(
            context.plan,
            context.plan.expert_groups ? context.plan.expert_groups->shard : comm::Group(),
            sharded_),
        first_(make_state()),
        second_(plan_.params.size()),
        by_matrix_(plan_.params.size()),
        elementwise_(how.elementwise) {
    default_lr_ = how.lr;
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      if (p.bucket < 0) continue;
      by_matrix_[i] = p.sizes.size() == 2 && p.numel > 0 && !p.policy.elementwise;
      if (!by_matrix_[i]) {
        second_[i] = buffers_.own(sharded_ ? p.shard : p.shard * space_of(p).ranks(),
                                  at::device(space_of(p).device).dtype(state_type(space_of(p))),
                                  MemoryCategory::optimizer);
      } else if (context.options.axes.cut && context.options.axes.cut(p.name)) {
        throw UsageError(
            str("Muon: parameter ", quote(p.name),
                " is cut by tensor parallelism, but Muon needs the whole matrix. Use --tp 1, "
                "another optimizer, or a policy with ParamPolicy::elementwise for this parameter, "
                "which trains it with AdamW"));
      }
    }
    matrix_rule_ = {{how.momentum, how.nesterov},
                    how.weight_decay,
                    how.lr == 0 ? 0 : how.elementwise.lr / how.lr,
                    by_matrix_};
  }

  void apply(const Reducer& reducer, const std::vector<bool>& used, const StepSettings& settings,
             double scale) override {
    const at::NoGradGuard no_grad;
    const memory::OwnerScope owner(buffers_.ledger());
    ++steps_;
    // A schedule scales both learning rates.
    const double elementwise_lr =
        how_.lr == 0 ? how_.elementwise.lr : settings.lr * (how_.elementwise.lr / how_.lr);
    const double elementwise_decay = settings.weight_decay.value_or(how_.elementwise.weight_decay);
    const double decay = settings.weight_decay.value_or(how_.weight_decay);
    // By the type of their states, those of experts apart.
    std::map<std::pair<bool, at::ScalarType>, std::vector<int>> matrices;
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      const auto index = static_cast<int>(i);
      if (p.bucket < 0 || !used[i]) continue;
      ++updates_[i];
      if (by_matrix_[i]) {
        matrices[{space_of(p).of_experts, state_type(space_of(p))}].push_back(index);
      } else if (held(p).size > 0) {
        ShardTensors shard = tensors(index, reducer);
        shard.a = shard_of_state(first_, index);
        shard.b = second_of(index);
        update_shard(
            how_.elementwise,
            step_of(index, elementwise_lr * settings.lr_scales[i], elementwise_decay, scale),
            shard);
      }
    }
    for (const auto& [kind, params] : matrices) {
      (kind.first ? expert_matrices_ : matrices_)
          .run(
              params, at::device(param(params.front()).tensor.device()).dtype(kind.second),
              [&](int index, const at::Tensor& direction) {
                if (direction.numel() == 0) return;
                ShardTensors shard = tensors(index, reducer);
                shard.param = direction;
                shard.master.reset();
                shard.a = shard_of_state(first_, index);
                update_shard(rules::Momentum{how_.momentum, how_.nesterov},
                             step_of(index, settings.lr_of(index), 0, scale), shard);
              },
              [&](int, const at::Tensor& matrix) { return orthogonalized(matrix); },
              [&](int index, const at::Tensor& direction) {
                if (direction.numel() == 0) return;
                const Param& p = param(index);
                ShardTensors shard = tensors(index, reducer);
                shard.grad = direction;
                update_shard(rules::Descent{muon_scale(p.sizes[0], p.sizes[1])},
                             step_of(index, settings.lr_of(index), decay, 1), shard);
              });
    }
  }

  ShardTensors shard(int index, const Reducer& reducer) const override {
    ShardTensors result = tensors(index, reducer);
    result.a = shard_of_state(first_, index);
    if (!by_matrix_[static_cast<std::size_t>(index)]) result.b = second_of(index);
    return result;
  }
  // Without a learning rate of matrices, that of the other parameters does not follow step()'s.
  const rules::Rule* rule() const override { return how_.lr == 0 ? nullptr : &elementwise_; }
  double weight_decay() const override { return how_.elementwise.weight_decay; }
  const MatrixRule* matrix_rule() const override { return &matrix_rule_; }
  std::string settings() const override { return settings_text(how_); }

  std::vector<std::pair<std::string, at::Tensor>> states(int index) const override {
    const auto i = static_cast<std::size_t>(index);
    const at::Tensor first = shard_of_state(first_, index);
    if (by_matrix_[i]) return {{"momentum", first}};
    return {{"moment1", first}, {"moment2", second_of(index)}};
  }

 private:
  static at::ScalarType state_type(const Space& space) {
    return space.dtype == at::kDouble ? at::kDouble : at::kFloat;
  }

  at::Tensor second_of(int index) const {
    return second_[static_cast<std::size_t>(index)].tensor.narrow(0, 0, held(param(index)).size);
  }

  const Muon how_;
  const MatrixExchange matrices_, expert_matrices_;
  const std::vector<Buffer> first_;  // momentum, or AdamW's first moment
  std::vector<Buffer> second_;       // per parameter: AdamW's second moment
  std::vector<bool> by_matrix_;      // per parameter
  const rules::Rule elementwise_;
  MatrixRule matrix_rule_;
};

}  // namespace

std::unique_ptr<Update> make_muon_update(const Muon& how, const UpdateContext& context) {
  return std::make_unique<MuonUpdate>(how, context);
}

}  // namespace tessera::zero
