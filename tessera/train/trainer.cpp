#include "tessera/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/device_usage.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/pipeline/executor.h"
#include "tessera/train/trainer_impl.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMostRollbacks = 10;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

// The state of the engine is looked at where all of it is there: between backward and update.
void Trainer::Impl::note_state() {
  const memory::LedgerCounts counts = ledger->counts();
  if (counts.total.now == 0) return;  // a profiler of LibTorch has the place: [Note: device memory]
  for (const MemoryCategory category :
       {MemoryCategory::params, MemoryCategory::grads, MemoryCategory::optimizer}) {
    std::int64_t& most = measured[std::string(name(category))];
    most = std::max(most, counts[category].now);
  }
}

// A pass, or a wait for another stage, has ended.
void Trainer::Impl::on_span(const pipeline::Span& span) {
  const std::string name = schedule::name(span.kind);
  const double waited_now = waited_s();
  const double in_all = seconds(span.begin, span.end);
  const double took = in_all - (waited_now - std::exchange(counted, waited_now));
  const bool bubble = name.starts_with("receive");
  if (name == "forward") now.forward_s += took;
  if (name.starts_with("backward")) now.backward_s += took;
  if (bubble) now.bubble_s += in_all;
  if (name == "forward" && ledger->counts().total.now > 0) {
    std::int64_t& most = measured["activations"];
    most = std::max(most, ledger->counts()[MemoryCategory::activations].now);
  }
  trace.span(bubble ? "bubble: " + name : name, span.begin, span.end, span.micro);
}

// [Note: owner] What the calling thread allocates is charged to the trainer for the time of a call,
// and not for its life: it may be made, used and destroyed by different threads.
Trainer::Trainer(TrainConfig config, comm::Group world) {
  memory::install();
  apply_threads(config);
  auto ledger = std::make_shared<memory::Ledger>(
      str("rank ", world.rank()), config.memory_limit,
      config.device == "cpu" ? memory::CountedMemory::host : memory::CountedMemory::device);
  const memory::OwnerScope owner(ledger);
  impl_ = std::make_unique<Impl>(std::move(config), std::move(world), ledger);
}
Trainer::~Trainer() = default;

StepMetrics Trainer::step() {
  Impl& impl = *impl_;
  const memory::OwnerScope owner(impl.ledger);
  const std::int64_t done = steps_done();
  StepMetrics& out = impl.now;
  out = {};
  out.step = done + 1;
  out.lr = impl.config.lr * impl.resolved.schedule.factor(done);
  out.tokens = impl.resolved.tokens_per_step();
  impl.ledger->reset_peak();
  memory::reset_device_peak(impl.device);
  impl.trace.begin_step(out.step);
  const double waited_before = impl.counted = impl.waited_s();
  const ParallelModel::Sent before = impl.model.sent();
  const Clock::time_point began = Clock::now();

  std::vector<data::Batch> batches;
  std::int64_t predicted = 0;
  for (std::int64_t k = 0; k < impl.sampler.micro_batches; ++k) {
    const std::uint64_t first =
        impl.sampler.first(done, impl.replica, k) + static_cast<std::uint64_t>(impl.sample_shift);
    batches.push_back(impl.source->batch(first, impl.sampler.micro_batch));
    predicted += batches.back().predicted;
  }
  impl.engine().begin({.micro_batches = static_cast<int>(impl.sampler.micro_batches),
                       .tokens = static_cast<double>(predicted)});
  impl.counted = impl.waited_s();
  const Clock::time_point passes = Clock::now();
  std::vector<MicroBatch> micro_batches;
  for (const data::Batch& batch : batches) micro_batches.push_back({batch.ids, batch.targets});
  impl.model.run(micro_batches);
  out.passes_s = seconds(passes, Clock::now());
  impl.note_state();

  const double waited = impl.waited_s();
  const Clock::time_point update = Clock::now();
  const zero::StepInfo info = impl.engine().step(out.lr);
  const Clock::time_point end = Clock::now();
  impl.note_state();
  const double waited_in_all = impl.waited_s();
  out.comm_exposed_s = waited_in_all - waited_before;
  out.optimizer_s = seconds(update, end) - (waited_in_all - waited);
  out.step_s = seconds(began, end);
  impl.trace.span("optimizer", update, end);
  impl.trace.span(str("step ", out.step), began, end);
  impl.trace.begin_step(0);

  const ParallelModel::Sent after = impl.model.sent();
  const comm::TrafficCounts dp = after.dp - before.dp, tp = after.tp - before.tp,
                            pp = after.pp - before.pp;
  const comm::TrafficCounts all = dp + tp + pp;
  out.comm_s = static_cast<double>(all.busy_ns) * 1e-9;
  out.sent_bytes = static_cast<std::int64_t>(all.sent_bytes);
  out.control_bytes = static_cast<std::int64_t>(all.control_bytes);
  impl.sent.dp += static_cast<std::int64_t>(dp.sent_bytes);
  impl.sent.tp += static_cast<std::int64_t>(tp.sent_bytes);
  impl.sent.pp += static_cast<std::int64_t>(pp.sent_bytes);
  memory::LedgerCounts counts = impl.ledger->counts();
  const bool by_category = counts.total.now > 0;
  if (const auto device = memory::device_usage(impl.device)) counts.total = *device;
  out.mem_bytes = counts.total.now;
  out.mem_peak_bytes = counts.total.peak;
  for (const auto& [name, bytes] :
       {std::pair<const char*, std::int64_t>{"buffers", counts[MemoryCategory::buffers].peak},
        {"temporary", counts[MemoryCategory::temporary].peak},
        {"peak", counts.total.peak}}) {
    if (!by_category && std::string_view(name) != "peak") continue;
    impl.measured[name] = std::max(impl.measured[name], bytes);
  }
  out.loss = info.loss;
  out.grad_norm = info.grad_norm;
  out.skipped = info.skipped;
  impl.history.push_back(out);
  if (info.skipped && impl.config.on_nan == "stop") {
    throw Error(str("step ", out.step, ": the gradient is not finite (loss ", info.loss, ", norm ",
                    info.grad_norm, "). Lower --lr (now ", out.lr,
                    "), raise --warmup, or go on "
                    "past such steps with --on-nan skip"));
  }
  return out;
}

std::int64_t Trainer::steps_done() const {
  return impl_->steps_before + static_cast<std::int64_t>(impl_->history.size());
}

std::string Trainer::whereabouts() const {
  std::string text;
  for (const auto& [axis, group] : impl_->model.groups()) {
    const std::string last = group.last_call();
    if (!last.empty()) text += str(text.empty() ? "" : "; ", axis, ": ", last);
  }
  return text.empty() ? "no call was made" : "last calls: " + text;
}

int Trainer::agree(int wish) const {
  const memory::OwnerScope owner(impl_->ledger);
  const at::Tensor flag = at::full({1}, wish, at::kInt);
  comm::Call call;
  call.op = comm::ReduceOp::max;
  call.traffic = comm::Traffic::control;
  call.label = "stop";
  // Ranks that do not synchronise do not ask each other either.
  if (impl_->config.comm == "on") impl_->world.all_reduce(flag, call).wait();
  return flag.item<int>();
}

std::optional<std::string> Trainer::resume(std::vector<std::string>& notes) {
  const memory::OwnerScope owner(impl_->ledger);
  const auto resumed = impl_->saver.resume(notes);
  if (!resumed) return std::nullopt;
  impl_->steps_before = resumed->steps - static_cast<std::int64_t>(impl_->history.size());
  impl_->sample_shift += resumed->samples - impl_->samples(resumed->steps);
  return resumed->folder;
}

std::string Trainer::roll_back() {
  Impl& impl = *impl_;
  const memory::OwnerScope owner(impl.ledger);
  if (++impl.rollbacks > kMostRollbacks) {
    throw Error(str("gradients were not finite ", impl.rollbacks,
                    " times, and going back to the last checkpoint did not help; lower --lr (now ",
                    impl.config.lr, ") or raise --warmup"));
  }
  const std::int64_t next = impl.samples(steps_done());
  impl.saver.finish();
  const auto resumed = impl.saver.resume_newest();
  if (!resumed) {
    throw Error(
        "--on-nan rollback: there is no checkpoint to go back to yet; save more often "
        "(--save-every), or stop or skip");
  }
  impl.steps_before = resumed->steps - static_cast<std::int64_t>(impl.history.size());
  impl.sample_shift += next - impl.samples(resumed->steps);
  return resumed->folder;
}

void Trainer::save() {
  const memory::OwnerScope owner(impl_->ledger);
  const Clock::time_point began = Clock::now();
  impl_->saver.save(steps_done(), impl_->samples(steps_done()));
  if (!impl_->history.empty()) {
    impl_->history.back().save_exposed_s = seconds(began, Clock::now());
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
    // Ranks that share the sequence need equal shards of it. What stands behind the last token
    // does not matter to it.
    const std::int64_t tp = config.sequence_parallel ? config.axes.tp() : 1;
    const at::Tensor logits =
        model.predict(at::constant_pad_nd(ids, {0, (length + tp - 1) / tp * tp - length}),
                      [](torch::nn::Module& last, const at::Tensor& x) {
                        return dynamic_cast<models::HeadImpl&>(last).logits(x);
                      });
    text.push_back(logits.select(0, 0).select(0, length - 1).argmax().item<std::int64_t>());
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(question.prompt.size()), text.end()};
}

std::vector<std::string> Trainer::answers(std::int64_t count) {
  const memory::OwnerScope owner(impl_->ledger);
  std::vector<std::string> lines;
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
  if (impl_->world.rank() != 0) return;
  train::write_trace(impl_->config.trace, events);
}

const TrainConfig& Trainer::config() const { return impl_->config; }
const Resolved& Trainer::resolved() const { return impl_->resolved; }
const std::vector<StepMetrics>& Trainer::history() const { return impl_->history; }

}  // namespace tessera::train
