#include "tessera/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
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
#include "tessera/train/parallelize.h"
#include "tessera/train/saving.h"
#include "tessera/train/trace.h"

namespace tessera::train {
namespace {

using Clock = Trace::Clock;
constexpr int kMostRollbacks = 10;

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

ParallelOptions parallel_options(const TrainConfig& config, const Resolved& resolved,
                                 c10::Device device, std::shared_ptr<memory::Ledger> ledger) {
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
  ParallelOptions options;
  options.tp = static_cast<int>(config.tp);
  options.pp = static_cast<int>(config.pp);
  options.sequence_parallel = config.sequence_parallel;
  options.schedule = config.schedule;
  options.chunks = static_cast<int>(config.chunks);
  options.micro_batches = static_cast<int>(resolved.grad_accum);
  options.checkpointing = nn::parse_checkpointing(config.checkpoint_activations);
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.device = device;
  options.engine = engine_options(config, resolved, std::move(ledger));
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
        ledger(std::make_shared<memory::Ledger>(str("rank ", world.rank()), config.memory_limit)),
        owner((memory::install(), ledger)),
        device(device_of(config, world)),
        source(make_source(config, resolved)),
        // With --comm off every rank is a replica of its own, on its own data.
        model(resolved.model, parallel_options(config, resolved, device, ledger),
              config.comm == "off" ? comm::Group() : world),
        plan(train::plan(config, resolved, model.mesh().place().dp, model.mesh().place().tp,
                         model.mesh().place().pp)),
        sampler{resolved.dp, resolved.grad_accum, config.micro_batch},
        replica(config.comm == "off" ? world.rank() : model.mesh().place().dp),
        saver(config, resolved, model, config.comm == "off" ? comm::Group() : world),
        trace(world.rank(), !config.trace.empty()) {
    model.watch([this](const char* name, Clock::time_point begin, Clock::time_point end) {
      on_span(name, begin, end);
    });
  }

  void on_span(const char* name, Clock::time_point begin, Clock::time_point end);
  void note_state();
  void compare_ranks(Summary& out) const;
  std::vector<data::Token> answer(const data::Question& question);
  zero::Engine& engine() { return model.engine(); }

  const TrainConfig config;
  const comm::Group world;
  const Resolved resolved;
  const std::shared_ptr<memory::Ledger> ledger;
  const memory::OwnerScope owner;  // before the first tensor
  const c10::Device device;
  const std::unique_ptr<data::Source> source;
  ParallelModel model;
  const planner::RunPlan plan;
  const data::Sampler sampler;
  const int replica;  // which part of the batch this rank has

  Saver saver;
  std::int64_t steps_before = 0;  // done by the run that was resumed
  std::int64_t data_shift = 0;    // steps whose data was passed over
  int rollbacks = 0;
  std::vector<StepMetrics> history;
  StepMetrics now;    // of the step under way
  double waited = 0;  // by the engine in this step, up to the last span
  Trace trace;
  MemoryBytes measured;  // the most of each category where it is looked at
  SentBytes sent;
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

// A pass, or a wait for another stage, has ended.
void Trainer::Impl::on_span(const char* name, Clock::time_point begin, Clock::time_point end) {
  const std::string_view what = name;
  const double waited_now = engine().times().exposed;
  const double took = seconds(begin, end) - (waited_now - std::exchange(waited, waited_now));
  if (what == "forward") now.forward_s += took;
  if (what.starts_with("backward")) now.backward_s += took;
  if (what.starts_with("receive")) {
    now.comm_exposed_s += took;
    now.bubble_s += took;
  }
  if (what == "forward" && device.is_cpu()) {
    std::int64_t& most = measured["activations"];
    most = std::max(most, ledger->counts()[MemoryCategory::activations].now);
  }
  trace.span(name, begin, end, now.step);
}

Trainer::Trainer(TrainConfig config, comm::Group world)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(world))) {}
Trainer::~Trainer() = default;

StepMetrics Trainer::step() {
  Impl& impl = *impl_;
  const std::int64_t done = steps_done();
  StepMetrics& out = impl.now;
  out = {};
  out.step = done + 1;
  out.lr = impl.config.lr * impl.resolved.schedule.factor(done);
  out.tokens = impl.resolved.tokens_per_step();
  impl.ledger->reset_peak();
  memory::reset_device_peak(impl.device);
  impl.engine().reset_times();
  impl.waited = 0;
  const ParallelModel::Sent before = impl.model.sent();
  const Clock::time_point began = Clock::now();

  std::vector<data::Batch> batches;
  std::int64_t predicted = 0;
  for (std::int64_t k = 0; k < impl.sampler.micro_batches; ++k) {
    batches.push_back(impl.source->batch(
        impl.sampler.first(done + impl.data_shift, impl.replica, k), impl.sampler.micro_batch));
    predicted += batches.back().predicted;
  }
  impl.engine().begin({.micro_batches = static_cast<int>(impl.sampler.micro_batches),
                       .tokens = static_cast<double>(predicted)});
  impl.waited = impl.engine().times().exposed;
  const Clock::time_point passes = Clock::now();
  impl.model.run(batches);
  out.passes_s = seconds(passes, Clock::now());
  impl.note_state();

  const double waited = impl.engine().times().exposed;
  const Clock::time_point update = Clock::now();
  const zero::StepInfo info = impl.engine().step(out.lr);
  const Clock::time_point end = Clock::now();
  impl.note_state();
  const double waited_in_all = impl.engine().times().exposed;
  out.comm_exposed_s += waited_in_all;
  out.optimizer_s = seconds(update, end) - (waited_in_all - waited);
  out.step_s = seconds(began, end);
  impl.trace.span("optimizer", update, end, out.step);
  impl.trace.span("step", began, end, out.step);

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
  return impl_->steps_before + static_cast<std::int64_t>(impl_->history.size());
}

std::string Trainer::whereabouts() const {
  const comm::Mesh& mesh = impl_->model.mesh();
  std::string text;
  for (const auto& [axis, group] : {std::pair<const char*, const comm::Group*>{"dp", &mesh.dp()},
                                    {"tp", &mesh.tp()},
                                    {"pp", &mesh.pp()},
                                    {"all", &mesh.world()}}) {
    const std::string last = group->last_call();
    if (!last.empty()) text += str(text.empty() ? "" : "; ", axis, ": ", last);
  }
  return text.empty() ? "no call was made" : "last calls: " + text;
}

int Trainer::agree(int wish) const {
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
  const auto resumed = impl_->saver.resume(notes);
  if (!resumed) return std::nullopt;
  impl_->steps_before = resumed->steps - static_cast<std::int64_t>(impl_->history.size());
  impl_->data_shift = resumed->data_steps - resumed->steps;
  return resumed->folder;
}

std::string Trainer::roll_back() {
  Impl& impl = *impl_;
  if (++impl.rollbacks > kMostRollbacks) {
    throw Error(str("gradients were not finite ", impl.rollbacks,
                    " times, and going back to the last checkpoint did not help; lower --lr (now ",
                    impl.config.lr, ") or raise --warmup"));
  }
  const std::int64_t after = steps_done() + impl.data_shift;  // the data that comes next
  impl.saver.finish();
  const auto resumed = impl.saver.resume_newest();
  if (!resumed) {
    throw Error(
        "--on-nan rollback: there is no checkpoint to go back to yet; save more often "
        "(--save-every), or stop or skip");
  }
  impl.steps_before = resumed->steps - static_cast<std::int64_t>(impl.history.size());
  impl.data_shift = after - resumed->steps;
  return resumed->folder;
}

void Trainer::save() { impl_->saver.save(steps_done(), steps_done() + impl_->data_shift); }
std::optional<std::string> Trainer::finish_saving() { return impl_->saver.finish(); }

std::vector<data::Token> Trainer::Impl::answer(const data::Question& question) {
  const at::NoGradGuard no_gradients;
  std::vector<data::Token> text = question.prompt;
  for (std::int64_t i = 0; i < question.answer_length; ++i) {
    const auto length =
        std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), resolved.seq);
    const at::Tensor ids =
        at::tensor(std::vector<data::Token>(text.end() - length, text.end()), at::kLong)
            .unsqueeze(0);  // [1, T]
    text.push_back(model.next_token(ids));
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

// What the ranks' steps were like, side by side: ranks that are slow, and the bubble of a pipeline.
void Trainer::Impl::compare_ranks(Summary& out) const {
  constexpr std::array<std::pair<const char*, double StepMetrics::*>, 5> kPhases = {
      {{"forward", &StepMetrics::forward_s},
       {"backward", &StepMetrics::backward_s},
       {"optimizer", &StepMetrics::optimizer_s},
       {"bubble", &StepMetrics::bubble_s},
       {"passes", &StepMetrics::passes_s}}};
  const at::Tensor mine = at::zeros({kPhases.size()}, at::kDouble);
  // The first step pays for what is done once.
  for (std::size_t i = history.size() > 1 ? 1 : 0; i < history.size(); ++i) {
    for (std::size_t p = 0; p < kPhases.size(); ++p) {
      mine.data_ptr<double>()[p] += history[i].*kPhases[p].second;
    }
  }
  const at::Tensor all =
      at::empty({world.size(), static_cast<std::int64_t>(kPhases.size())}, at::kDouble);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "times of the ranks";
  world.all_gather(all.view(-1), mine, call).wait();
  const at::Tensor medians = std::get<0>(all.median(0));
  for (int r = 0; r < world.size() && config.pp == 1; ++r) {  // stages of a pipeline may differ
    SlowRank slow{r, "", kSlow};
    for (std::size_t p = 0; p < 3; ++p) {
      const auto column = static_cast<std::int64_t>(p);
      const double median = medians[column].item<double>();
      const double factor = median > 0 ? all[r][column].item<double>() / median : 0;
      if (factor > slow.factor) slow = {r, kPhases[p].first, factor};
    }
    if (!slow.phase.empty()) out.slow_ranks.push_back(slow);
  }
  if (config.pp == 1) return;
  const double passes = all.select(1, 4).sum().item<double>();
  out.bubble = passes > 0 ? all.select(1, 3).sum().item<double>() / passes : 0;
  out.predicted_bubble = schedule::time(schedule::make(config.schedule, static_cast<int>(config.pp),
                                                       static_cast<int>(resolved.grad_accum),
                                                       static_cast<int>(config.chunks)),
                                        {})
                             .bubble;
}

Summary Trainer::summary() {
  Impl& impl = *impl_;
  impl.engine().synchronize();
  Summary out;
  impl.compare_ranks(out);
  out.predicted.memory = {
      {"params", impl.plan.params}, {"grads", impl.plan.grads}, {"optimizer", impl.plan.optimizer}};
  if (impl.plan.activations) out.predicted.memory["activations"] = *impl.plan.activations;
  out.predicted.sent = SentBytes{impl.plan.sent_dp, impl.plan.sent_tp, impl.plan.sent_pp};
  out.measured.memory = impl.measured;
  if (const auto steps = static_cast<std::int64_t>(impl.history.size()); steps > 0) {
    out.measured.sent = SentBytes{impl.sent.dp / steps, impl.sent.tp / steps, impl.sent.pp / steps};
  }
  char hash[32];
  std::snprintf(hash, sizeof hash, "%016llx",
                static_cast<unsigned long long>(impl.model.params_hash()));
  out.params_hash = hash;
  std::vector<double> rates, times;
  for (const StepMetrics& step : impl.history) {
    rates.push_back(step.tokens_per_s());
    times.push_back(step.step_s);
    out.skipped += step.skipped ? 1 : 0;
  }
  out.tokens_per_s = median(std::move(rates));
  out.step_s = median(std::move(times));
  out.predicted.step_s = predicted_step(impl.config, impl.resolved);
  out.measured.step_s = out.step_s;
  out.steps = static_cast<std::int64_t>(impl.history.size());
  if (!impl.history.empty()) {
    out.first_loss = impl.history.front().loss;
    out.last_loss = impl.history.back().loss;
  }
  out.run = {{"model", impl.resolved.model.name.empty() ? "gpt" : impl.resolved.model.name},
             {"parameters", str(impl.resolved.model.params())},
             {"ranks", str(impl.world.size())},
             {"dp", str(impl.resolved.dp)},
             {"tp", str(impl.config.tp)},
             {"pp", str(impl.config.pp)},
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
             " tokens = ", impl.resolved.dp, impl.resolved.dp == 1 ? " replica × " : " replicas × ",
             impl.resolved.grad_accum, " × ", impl.config.micro_batch, " sequences\nZeRO-",
             impl.config.zero, ", ", impl.config.layout, ", ",
             impl.world.size() == 1 ? "alone" : impl.world.backend(), ", ", at::get_num_threads(),
             at::get_num_threads() == 1 ? " thread" : " threads", " per rank; ",
             impl.model.describe(), "\n");
}

}  // namespace tessera::train
