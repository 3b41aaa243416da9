#include "tessera/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/fp8.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/trainer_impl.h"

namespace tessera::train {
namespace {

constexpr int kMaxRollbacks = 10;

}  // namespace

// [Note: owner] Allocations of the calling thread are charged to the trainer only during a call,
// because a trainer may be made, used and destroyed by different threads.
Trainer::Trainer(RunConfig config, comm::Group world) {
  memory::install();
  apply_threads(config);
  auto ledger = std::make_shared<memory::Ledger>(
      str("rank ", world.rank()), config.memory_limit,
      config.device == Device::cpu ? memory::CountedMemory::host : memory::CountedMemory::device);
  const memory::OwnerScope owner(ledger);
  // Make the GPU of this rank the current one: LibTorch makes contexts and pinned memory on the
  // current device, which would otherwise be the first one for all ranks of a host.
  if (const c10::Device device = device_of(config, world.rank(), world.size()); !device.is_cpu()) {
    c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
    if (config.precision == Precision::fp8) nn::require_fp8();
  }
  impl_ = std::make_unique<Impl>(std::move(config), std::move(world), ledger);
}
Trainer::~Trainer() {
  const memory::OwnerScope owner(impl_->ledger);
  impl_.reset();
}

std::int64_t Trainer::steps_done() const { return impl_->steps_done(); }
std::int64_t Trainer::steps_in_all() const { return impl_->steps_in_all(); }

std::string Trainer::last_calls() const {
  std::string text;
  for (const auto& [axis, group] : impl_->model.groups()) {
    const std::string last = group.last_call();
    if (!last.empty()) text += str(text.empty() ? "" : "; ", axis, ": ", last);
  }
  return text.empty() ? "no collective was called" : "last calls: " + text;
}

std::optional<std::string> Trainer::resume(std::vector<std::string>& notes) {
  const memory::OwnerScope owner(impl_->ledger);
  impl_->finish(0);
  impl_->clock.pause();
  const auto resumed = impl_->saver.resume(notes);
  if (!resumed) return std::nullopt;
  impl_->steps_before = resumed->steps - impl_->launched;
  impl_->sample_shift += resumed->samples - impl_->samples(resumed->steps);
  return resumed->folder;
}

std::string Trainer::roll_back() {
  Impl& impl = *impl_;
  const memory::OwnerScope owner(impl.ledger);
  if (++impl.rollbacks > kMaxRollbacks) {
    throw Error(
        str("gradients were not finite ", impl.rollbacks,
            " times, and rolling back to the last checkpoint did not help. Lower --lr (now ",
            impl.resolved.lr, ") or raise --warmup."));
  }
  impl.finish(0);
  impl.clock.pause();
  const std::int64_t next = impl.samples(steps_done());
  impl.saver.finish();
  const auto resumed = impl.saver.resume_newest();
  if (!resumed) {
    throw Error(
        "--on-nan rollback: there is no checkpoint to roll back to yet. Save more often "
        "(--save-every), or use --on-nan stop or skip.");
  }
  impl.steps_before = resumed->steps - impl.launched;
  impl.sample_shift += next - impl.samples(resumed->steps);
  return resumed->folder;
}

void Trainer::save() {
  const memory::OwnerScope owner(impl_->ledger);
  impl_->finish(0);
  impl_->clock.pause();
  const HostTime began = host_now();
  impl_->saver.save(steps_done(), impl_->samples(steps_done()));
  if (!impl_->history.empty()) {
    impl_->history.back().save_exposed_s = seconds_between(began, host_now());
  }
}
memory::Ledger& Trainer::ledger() const { return *impl_->ledger; }

LastSave Trainer::finish_saving() {
  const memory::OwnerScope owner(impl_->ledger);
  return impl_->saver.finish();
}

std::vector<data::Token> Trainer::Impl::answer(const data::Question& question) {
  const at::NoGradGuard no_gradients;
  std::vector<data::Token> text = question.prompt;
  for (std::int64_t i = 0; i < question.answer_length; ++i) {
    const auto length =
        std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), resolved.seq);
    const at::Tensor ids =
        at::tensor(std::vector<data::Token>(text.end() - length, text.end()), at::kLong)
            .unsqueeze(0);  // [1, T]
    // Ranks need equal shards. Padding does not affect the tokens before it. With context
    // parallelism the model pads.
    const SequencePart part = own_part();
    const std::int64_t all = padded_tokens(length, part.parts, config.sequence_ranks());
    const std::int64_t missing = part.parts == 1 ? all - length : 0;
    const at::Tensor logits = model.predict(
        at::constant_pad_nd(ids, {0, missing}), [](torch::nn::Module& last, const at::Tensor& x) {
          return dynamic_cast<models::HeadImpl&>(last).logits(x);
        });
    // The rank that has the last token chooses the next one; the others add 0.
    const at::Tensor next = at::zeros({1}, at::kLong);
    for (const TokenRange& range : part.ranges(all / part.parts)) {
      const std::int64_t at = length - 1 - range.position;
      if (at < 0 || at >= range.count) continue;
      next.fill_(logits.select(0, 0).select(0, range.local + at).argmax().cpu());
    }
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "next token";
    model.mesh().group(Axis::cp).all_reduce(next, call).wait();
    text.push_back(next.item<std::int64_t>());
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(question.prompt.size()), text.end()};
}

std::vector<std::string> Trainer::answers(std::int64_t count) {
  const memory::OwnerScope owner(impl_->ledger);
  impl_->finish(0);
  impl_->clock.pause();
  std::vector<std::string> lines;
  // Values of simulated ranks are meaningless.
  if (impl_->world.simulated() && impl_->world.size() > 1) return lines;
  for (std::int64_t i = 0; i < count; ++i) {
    const data::Question question = impl_->source->question(static_cast<std::uint64_t>(i));
    lines.push_back(impl_->source->show(question, impl_->answer(question)));
  }
  return lines;
}

void Trainer::write_trace() const {
  if (impl_->config.trace.empty()) return;
  const memory::OwnerScope owner(impl_->ledger);
  const auto events = parallel::gather_texts(impl_->world, impl_->trace.events(), "trace");
  if (impl_->world.rank() != 0 && !impl_->world.simulated()) return;
  train::write_trace(impl_->config.trace, events);
}

std::vector<std::string> Trainer::data_notes() const { return impl_->source->notes(); }
const RunConfig& Trainer::config() const { return impl_->config; }
const Resolved& Trainer::resolved() const { return impl_->resolved; }
const std::vector<StepMetrics>& Trainer::history() const { return impl_->history; }

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
      if (own_part().index == 0) sums[1] += static_cast<double>(batch.predicted);
      micro_batches.push_back(
          {std::move(batch.ids), std::move(batch.targets), std::move(batch.document_starts)});
    }
    for (const at::Tensor& loss : model.evaluate(micro_batches)) sums[0] += loss.item<double>();
  }
  // Ranks along tp and pp have the same sums.
  const comm::Group& dp = model.mesh().group(kTokenAxes);
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
