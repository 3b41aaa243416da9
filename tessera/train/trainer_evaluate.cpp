// Evaluation of the trainer on validation data.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "tessera/train/evaluate.h"
#include "tessera/train/trainer_impl.h"

namespace tessera::train {

// Every mesh evaluates the same samples: batches of the size of a step, from the beginning of the
// validation data, divided over replicas as in training. The model runs without gradients between
// two steps, so that training is not affected.
Evaluation Trainer::Impl::evaluate() {
  const at::NoGradGuard no_gradients;
  const std::int64_t asked = validation->samples_per_epoch() == 0 && config.eval_batches == 0
                                 ? kEndlessBatches
                                 : config.eval_batches;
  const std::int64_t batches = batches_of(*validation, sampler.global_batch(), asked);
  double sums[2] = {0, 0};  // of losses, and of predicted tokens
  for (std::int64_t b = 0; b < batches; ++b) {
    std::vector<MicroBatch> micro_batches;
    for (std::int64_t k = 0; k < sampler.micro_batches; ++k) {
      data::Batch batch = validation->batch(sampler.first(b, replica, k), sampler.micro_batch);
      sums[1] += static_cast<double>(batch.predicted);
      micro_batches.push_back(
          {std::move(batch.ids), std::move(batch.targets), std::move(batch.document_starts)});
    }
    for (const at::Tensor& loss : model.evaluate(micro_batches)) sums[0] += loss.item<double>();
  }
  // All ranks of a replica have the same sums.
  const comm::Group& dp = model.mesh().dp();
  const at::Tensor mine = at::empty({2}, at::kDouble),
                   all = at::empty({2 * dp.size()}, at::kDouble);
  std::copy(sums, sums + 2, mine.data_ptr<double>());
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "evaluation";
  dp.all_gather(all, mine, call).wait();
  Evaluation out;
  for (int r = 0; r < dp.size(); ++r) {
    out.loss_sum += all.data_ptr<double>()[2 * r];
    out.tokens += static_cast<std::int64_t>(all.data_ptr<double>()[2 * r + 1]);
  }
  out.bytes = static_cast<double>(out.tokens) * validation->bytes_per_token();
  return out;
}

bool Trainer::validates() const { return impl_->validation != nullptr; }

Evaluation Trainer::evaluate() {
  Impl& impl = *impl_;
  const memory::OwnerScope owner(impl.ledger);
  impl.finish(0);
  impl.clock.pause();
  const HostTime began = host_now();
  Evaluation out = impl.evaluate();
  out.seconds = seconds_between(began, host_now());
  if (!impl.history.empty()) impl.history.back().evaluation = out;
  impl.evaluation = out;
  return out;
}

}  // namespace tessera::train
