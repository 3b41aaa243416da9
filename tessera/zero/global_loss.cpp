#include "tessera/zero/global_loss.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::zero {

void GlobalLoss::begin(int micro_batches) {
  scale_ = 1.0 / (static_cast<double>(group_.size()) * micro_batches);
  tokens_.reset();
  sum_.reset();
}

void GlobalLoss::weigh_by_tokens(double tokens_of_this_rank) {
  tokens_ = at::full({1}, tokens_of_this_rank, at::dtype(at::kDouble));
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "tokens";
  tokens_known_ = group_.all_reduce(tokens_, call);
}

double GlobalLoss::scale(Stopwatch& waiting) {
  if (!tokens_.defined()) return scale_;
  scale_ = 0;  // in case the exchange fails
  waiting.time([&] { std::exchange(tokens_known_, {}).wait(); });
  const double total = std::exchange(tokens_, {}).item<double>();
  if (!(total >= 0) || !std::isfinite(total)) {
    throw UsageError(str("begin: the ranks have ", total, " tokens in total, must be 0 or more"));
  }
  scale_ = total > 0 ? 1.0 / total : 0.0;
  return scale_;
}

void GlobalLoss::add(const at::Tensor& scaled_loss) {
  const at::Tensor value = scaled_loss.detach().to(at::kDouble);
  sum_ = sum_.defined() ? sum_ + value : value;
}

}  // namespace tessera::zero
