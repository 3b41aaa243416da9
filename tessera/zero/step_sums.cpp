#include "tessera/zero/step_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace tessera::zero {
namespace {

// What every rank of a group has, side by side, for small host tensors that are not counted.
at::Tensor side_by_side(const comm::Group& group, const at::Tensor& mine, const char* label,
                        Stopwatch& waiting) {
  const at::Tensor all = at::empty({mine.numel() * group.size()}, mine.options());
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  const comm::Work work = group.all_gather(all, mine, call);
  waiting.time([&] { work.wait(); });
  return all;
}

}  // namespace

StepSums sum_over_ranks(const comm::Group& group, const StepSums& mine, Stopwatch& waiting) {
  constexpr int kBits = 48;  // of a double, exactly
  const std::size_t params = mine.used.size(), words = (params + kBits - 1) / kBits;
  const at::Tensor own = at::zeros({static_cast<std::int64_t>(words) + 2}, at::dtype(at::kDouble));
  auto* values = own.data_ptr<double>();
  values[0] = mine.squares;
  values[1] = mine.loss;
  for (std::size_t i = 0; i < params; ++i) {
    if (mine.used[i]) values[2 + i / kBits] += std::ldexp(1.0, static_cast<int>(i % kBits));
  }
  const at::Tensor all = side_by_side(group, own, "norm, loss and used parameters", waiting);
  StepSums sums;
  sums.used.resize(params);
  for (int r = 0; r < group.size(); ++r) {
    const double* theirs = all.data_ptr<double>() + r * own.numel();
    sums.squares += theirs[0];
    sums.loss += theirs[1];
    for (std::size_t i = 0; i < params; ++i) {
      const auto bits = static_cast<std::uint64_t>(theirs[2 + i / kBits]);
      if ((bits >> (i % kBits)) & 1) sums.used[i] = true;
    }
  }
  return sums;
}

void sum_over_model(const ModelAxes& axes, StepSums& sums, Stopwatch& waiting) {
  if (!axes.counts_loss) sums.loss = 0;
  if (axes.group.size() == 1) return;
  const at::Tensor mine = at::empty({2}, at::dtype(at::kDouble));
  mine.data_ptr<double>()[0] = sums.squares;
  mine.data_ptr<double>()[1] = sums.loss;
  const at::Tensor all =
      side_by_side(axes.group, mine, "norm and loss of the parts of the model", waiting);
  sums.squares = sums.loss = 0;
  for (int r = 0; r < axes.group.size(); ++r) {
    sums.squares += all.data_ptr<double>()[2 * r];
    sums.loss += all.data_ptr<double>()[2 * r + 1];
  }
}

}  // namespace tessera::zero
