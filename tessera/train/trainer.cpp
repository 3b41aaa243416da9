#include "tessera/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/sampler.h"
#include "tessera/data/source.h"
#include "tessera/memory/allocator.h"
#include "tessera/memory/device_usage.h"
#include "tessera/models/gpt.h"
#include "tessera/train/trace.h"
#include "tessera/zero/engine.h"

namespace tessera::train {
namespace {

using Clock = Trace::Clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::unique_ptr<data::Source> make_source(const TrainConfig& config, const Resolved& resolved) {
  const auto seed = static_cast<std::uint64_t>(config.seed);
  if (config.data == "synthetic") return data::sorting(resolved.seq, seed);
  return data::text_file(config.data, resolved.seq, seed);
}

zero::Options engine_options(const TrainConfig& config, const Resolved& resolved,
                             std::shared_ptr<memory::Ledger> ledger) {
  zero::Options options;
  options.stage = static_cast<int>(config.zero);
  options.layout = parse_state_layout(config.layout);
  if (config.optimizer == "sgd") {
    options.optimizer = zero::SGD{
        .lr = config.lr, .momentum = config.momentum, .weight_decay = config.weight_decay};
  } else {
    options.optimizer = zero::AdamW{.lr = config.lr,
                                    .beta1 = config.beta1,
                                    .beta2 = config.beta2,
                                    .eps = config.eps,
                                    .weight_decay = config.weight_decay};
  }
  options.micro_batches = static_cast<int>(resolved.grad_accum);
  options.reduce = resolved.policy;
  options.clip_norm = config.clip;
  // The trainer itself stops where it should: it knows the flag that says otherwise.
  options.on_non_finite = zero::OnNonFinite::skip;
  options.bucket_bytes = std::max<std::int64_t>(1, std::llround(config.bucket_mb * 1e6));
  options.overlap_grad_reduce = config.overlap_grad_reduce;
  options.overlap_param_gather = config.overlap_param_gather;
  options.prefetch = config.prefetch;
  options.keep_params = config.keep_params;
  options.gather = config.gather == "alias"  ? zero::Gather::alias
                   : config.gather == "copy" ? zero::Gather::copy
                                             : zero::Gather::automatic;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.ledger = std::move(ledger);
  return options;
}

c10::Device device_of(const TrainConfig& config, const comm::Group& world) {
  if (config.device == "cpu") return c10::Device(c10::kCPU);
  if (!at::hasCUDA()) {
    throw UsageError("--device: got cuda, but LibTorch finds no CUDA device; wanted cpu");
  }
  const auto count = static_cast<int>(at::detail::getCUDAHooks().deviceCount());
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(world.rank() % std::max(1, count))};
}

}  // namespace

struct Trainer::Impl {
  Impl(TrainConfig c, comm::Group w)
      : config(std::move(c)),
        world(std::move(w)),
        resolved(resolve(config, world.size())),
        plan(train::plan(config, resolved)),
        group(config.comm == "off" ? comm::Group() : world),
        ledger(std::make_shared<memory::Ledger>(str("rank ", world.rank()), config.memory_limit)),
        owner((memory::install(), ledger)),
        device(device_of(config, world)),
        source(make_source(config, resolved)),
        sampler{world.size(), resolved.grad_accum, config.micro_batch},
        trace(world.rank(), !config.trace.empty()) {
    if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
    model = models::Gpt(resolved.model, static_cast<std::uint64_t>(config.seed));
    if (!device.is_cpu()) model->to(device);
    if (resolved.recompute != planner::Recompute::none) {
      nn::set_checkpointing(*model, nn::parse_checkpointing(config.checkpoint_activations));
    }
    engine.emplace(model.ptr(), group, engine_options(config, resolved, ledger));
  }

  void micro_step(const data::Batch& batch, StepMetrics& out);
  void note_state();
  std::vector<data::Token> answer(const data::Question& question);

  const TrainConfig config;
  const comm::Group world;
  const Resolved resolved;
  const planner::RunPlan plan;
  const comm::Group group;  // of the engine: alone with --comm off
  const std::shared_ptr<memory::Ledger> ledger;
  const memory::OwnerScope owner;  // before the first tensor
  const c10::Device device;
  const std::unique_ptr<data::Source> source;
  const data::Sampler sampler;
  models::Gpt model{nullptr};
  std::optional<zero::Engine> engine;

  std::vector<StepMetrics> history;
  Trace trace;
  MemoryBytes measured;  // the most of each category where it is looked at
  std::int64_t sent = 0;
};

// The state of the engine is looked at where all of it is there: between backward and update.
void Trainer::Impl::note_state() {
  if (!device.is_cpu()) return;  // LibTorch's own allocators of other devices know no categories
  const memory::LedgerCounts counts = ledger->counts();
  for (const MemoryCategory category :
       {MemoryCategory::params, MemoryCategory::grads, MemoryCategory::optimizer}) {
    std::int64_t& most = measured[std::string(name(category))];
    most = std::max(most, counts[category].now);
  }
}

void Trainer::Impl::micro_step(const data::Batch& batch, StepMetrics& out) {
  const std::int64_t step = static_cast<std::int64_t>(history.size()) + 1;
  const at::Tensor ids = batch.ids.to(device), targets = batch.targets.to(device);
  const double waited = engine->times().exposed;
  const Clock::time_point began = Clock::now();
  at::Tensor loss;
  {
    const memory::CategoryScope category(MemoryCategory::activations);
    loss = nn::observed(
        engine->root(),
        [this](const at::Tensor& in, const at::Tensor& want) { return model->loss(in, want); }, ids,
        targets);
  }
  const Clock::time_point middle = Clock::now();
  const double waited_forward = engine->times().exposed;
  if (device.is_cpu()) {
    std::int64_t& most = measured["activations"];
    most = std::max(most, ledger->counts()[MemoryCategory::activations].now);
  }
  engine->backward(loss);
  const Clock::time_point end = Clock::now();
  out.forward_s += seconds(began, middle) - (waited_forward - waited);
  out.backward_s += seconds(middle, end) - (engine->times().exposed - waited_forward);
  trace.span("forward", began, middle, step);
  trace.span("backward", middle, end, step);
}

Trainer::Trainer(TrainConfig config, comm::Group world)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(world))) {}
Trainer::~Trainer() = default;

StepMetrics Trainer::step() {
  Impl& impl = *impl_;
  const auto done = static_cast<std::int64_t>(impl.history.size());
  StepMetrics out;
  out.step = done + 1;
  out.lr = impl.config.lr * impl.resolved.schedule.factor(done);
  out.tokens = impl.resolved.tokens_per_step();
  impl.ledger->reset_peak();
  memory::reset_device_peak(impl.device);
  impl.engine->reset_times();
  const comm::TrafficCounts before = impl.group.traffic();
  const Clock::time_point began = Clock::now();

  std::vector<data::Batch> batches;
  std::int64_t predicted = 0;
  for (std::int64_t k = 0; k < impl.sampler.micro_batches; ++k) {
    batches.push_back(impl.source->batch(impl.sampler.first(done, impl.world.rank(), k),
                                         impl.sampler.micro_batch));
    predicted += batches.back().predicted;
  }
  impl.engine->begin({.micro_batches = static_cast<int>(impl.sampler.micro_batches),
                      .tokens = static_cast<double>(predicted)});
  for (const data::Batch& batch : batches) impl.micro_step(batch, out);
  impl.note_state();

  const double waited = impl.engine->times().exposed;
  const Clock::time_point update = Clock::now();
  const zero::StepInfo info = impl.engine->step(out.lr);
  const Clock::time_point end = Clock::now();
  impl.note_state();
  out.comm_exposed_s = impl.engine->times().exposed;
  out.optimizer_s = seconds(update, end) - (out.comm_exposed_s - waited);
  out.step_s = seconds(began, end);
  impl.trace.span("optimizer", update, end, out.step);
  impl.trace.span("step", began, end, out.step);

  const comm::TrafficCounts traffic = impl.group.traffic() - before;
  out.comm_s = static_cast<double>(traffic.busy_ns) * 1e-9;
  out.sent_bytes = static_cast<std::int64_t>(traffic.sent_bytes);
  out.control_bytes = static_cast<std::int64_t>(traffic.control_bytes);
  impl.sent += out.sent_bytes;
  memory::LedgerCounts counts = impl.ledger->counts();
  if (const auto device = memory::device_usage(impl.device)) counts.total = *device;
  out.mem_bytes = counts.total.now;
  out.mem_peak_bytes = counts.total.peak;
  for (const auto& [name, bytes] :
       {std::pair<const char*, std::int64_t>{"buffers", counts[MemoryCategory::buffers].peak},
        {"temporary", counts[MemoryCategory::temporary].peak},
        {"peak", counts.total.peak}}) {
    if (!impl.device.is_cpu() && std::string_view(name) != "peak") continue;
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
  return static_cast<std::int64_t>(impl_->history.size());
}

bool Trainer::agree(bool any) const {
  const at::Tensor flag = at::full({1}, any ? 1 : 0, at::kInt);
  comm::Call call;
  call.op = comm::ReduceOp::max;
  call.traffic = comm::Traffic::control;
  call.label = "stop";
  impl_->group.all_reduce(flag, call).wait();
  return flag.item<int>() != 0;
}

std::vector<data::Token> Trainer::Impl::answer(const data::Question& question) {
  const at::NoGradGuard no_gradients;
  std::vector<data::Token> text = question.prompt;
  for (std::int64_t i = 0; i < question.answer_length; ++i) {
    const auto length =
        std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), resolved.seq);
    const at::Tensor ids =
        at::tensor(std::vector<data::Token>(text.end() - length, text.end()), at::kLong)
            .unsqueeze(0)
            .to(device);  // [1, T]
    const at::Tensor logits = nn::observed(
        engine->root(), [this](const at::Tensor& in) { return model->forward(in); }, ids);
    text.push_back(logits.select(0, 0).select(0, length - 1).argmax().item<data::Token>());
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(question.prompt.size()), text.end()};
}

std::vector<std::string> Trainer::answers(std::int64_t count) {
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < count; ++i) {
    const data::Question question = impl_->source->question(static_cast<std::uint64_t>(i));
    lines.push_back(impl_->source->show(question, impl_->answer(question)));
  }
  return lines;
}

Summary Trainer::summary() {
  Impl& impl = *impl_;
  impl.engine->synchronize();
  Summary out;
  out.predicted.memory = {{"params", impl.plan.params},
                          {"grads", impl.plan.grads},
                          {"optimizer", impl.plan.optimizer},
                          {"activations", impl.plan.activations}};
  out.predicted.sent_bytes = impl.plan.sent_bytes;
  out.measured.memory = impl.measured;
  if (!impl.history.empty()) out.measured.sent_bytes = impl.sent / steps_done();
  char hash[32];
  std::snprintf(hash, sizeof hash, "%016llx",
                static_cast<unsigned long long>(impl.engine->params_hash()));
  out.params_hash = hash;
  std::vector<double> rates, times;
  for (const StepMetrics& step : impl.history) {
    rates.push_back(step.tokens_per_s());
    times.push_back(step.step_s);
    out.skipped += step.skipped ? 1 : 0;
  }
  out.tokens_per_s = median(std::move(rates));
  out.step_s = median(std::move(times));
  out.steps = steps_done();
  if (!impl.history.empty()) {
    out.first_loss = impl.history.front().loss;
    out.last_loss = impl.history.back().loss;
  }
  out.run = {{"model", impl.resolved.model.name.empty() ? "gpt" : impl.resolved.model.name},
             {"parameters", str(impl.resolved.model.params())},
             {"ranks", str(impl.world.size())},
             {"zero", str(impl.config.zero)},
             {"layout", impl.config.layout},
             {"comm", impl.config.comm},
             {"data", impl.config.data}};
  return out;
}

void Trainer::write_trace() const {
  if (impl_->config.trace.empty()) return;
  // Every rank learns all lengths, then all texts, padded to the longest.
  const std::string mine = impl_->trace.events();
  const comm::Group& world = impl_->world;
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "trace";
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  const at::Tensor lengths = at::empty({world.size()}, at::kLong);
  world.all_gather(lengths, length, call).wait();
  const std::int64_t most = lengths.max().item<std::int64_t>();
  const at::Tensor text = at::zeros({most}, at::kByte);
  std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor texts = at::empty({world.size() * most}, at::kByte);
  world.all_gather(texts, text, call).wait();
  if (world.rank() != 0) return;
  std::vector<std::string> events;
  for (int r = 0; r < world.size(); ++r) {
    const auto* const from = static_cast<const char*>(texts.const_data_ptr()) + r * most;
    events.emplace_back(from, static_cast<std::size_t>(lengths[r].item<std::int64_t>()));
  }
  train::write_trace(impl_->config.trace, events);
}

const TrainConfig& Trainer::config() const { return impl_->config; }
const Resolved& Trainer::resolved() const { return impl_->resolved; }
const std::vector<StepMetrics>& Trainer::history() const { return impl_->history; }

std::string Trainer::describe() const {
  const Impl& impl = *impl_;
  const planner::ModelShape& shape = impl.resolved.model;
  return str(shape.name.empty() ? "GPT" : shape.name, ": ", format_count(shape.params()),
             " parameters (", shape.layers, " layers, width ", shape.hidden, ", ", shape.heads,
             " heads, vocabulary ", shape.vocab, ")\n", impl.source->name(), ": ",
             impl.config.steps, " steps of ", impl.resolved.global_batch, " × ", impl.resolved.seq,
             " tokens = ", impl.world.size(), impl.world.size() == 1 ? " rank × " : " ranks × ",
             impl.resolved.grad_accum, " × ", impl.config.micro_batch, " sequences\nZeRO-",
             impl.config.zero, ", ", impl.config.layout, ", ",
             impl.group.size() == 1 ? "alone" : impl.group.backend(), ", ", at::get_num_threads(),
             at::get_num_threads() == 1 ? " thread" : " threads", " per rank; ",
             impl.engine->describe(), "\n");
}

}  // namespace tessera::train
