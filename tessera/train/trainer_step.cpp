// Steps of the trainer: launching and finishing them.

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/device_memory.h"
#include "tessera/nn/pass.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/parallel/model_chunk.h"
#include "tessera/parallel/rank_tokens.h"
#include "tessera/pipeline/executor.h"
#include "tessera/planner/pass_memory.h"
#include "tessera/simulator/memory_over_step.h"
#include "tessera/train/trainer_impl.h"

namespace tessera::train {
namespace {

// Returns the tensor in pinned memory, which a GPU copies asynchronously. LibTorch caches pinned
// memory, and reuses it when the copy is over.
at::Tensor for_device(const at::Tensor& tensor, c10::Device device) {
  return device.is_cpu() || !tensor.defined() ? tensor : tensor.pin_memory();
}

// Throws DataError for a token outside the vocabulary. On a GPU it would cause a device error
// later, without the token. With a vocabulary split over ranks, each rank would ignore it as
// another rank's token.
void check_tokens(const data::Source& source, std::uint64_t first, const at::Tensor& tokens,
                  std::int64_t least, std::int64_t vocabulary, std::int64_t ahead) {
  const auto* const all = tokens.const_data_ptr<data::Token>();
  const std::int64_t count = tokens.numel();
  const auto* const bad = std::find_if(
      all, all + count, [&](data::Token token) { return token < least || token >= vocabulary; });
  if (bad == all + count) return;
  const std::int64_t at = bad - all, length = source.seq();
  throw DataError(str("--data: token ", *bad, " at position ", at % length + ahead, " of ",
                      source.where(first + static_cast<std::uint64_t>(at / length)),
                      "; must be from 0 to ", vocabulary - 1, ", the vocabulary of the model"));
}

// Returns the bytes of a step's data. The data is made outside the ledger's scope, because the
// amount that is prefetched at any time is not deterministic.
std::int64_t bytes_of(const std::vector<MicroBatch>& batches) {
  std::int64_t bytes = 0;
  for (const MicroBatch& batch : batches) {
    for (const at::Tensor& each : {batch.input, batch.targets, batch.document_starts}) {
      if (each.defined()) {
        bytes += memory::charged_bytes(static_cast<std::int64_t>(each.nbytes()));
      }
    }
  }
  return bytes;
}

// Sums the phases of a step on a GPU.
void put_times(StepMetrics& out, const PhaseClock::Step& times) {
  out.step_s = times.step_s;
  for (const PhaseClock::Phase& phase : times.phases) {
    if (phase.name == "forward") out.forward_s += phase.seconds;
    if (phase.name.starts_with("backward")) out.backward_s += phase.seconds;
    if (phase.name.starts_with("receive")) out.bubble_s += phase.seconds;
    if (phase.name == "optimizer") {
      out.optimizer_s += phase.seconds;
    } else {
      out.passes_s += phase.seconds;
    }
  }
  if (out.forward_s == 0) {
    out.graph_s = times.work_s;
    out.passes_s = out.optimizer_s = 0;
  }
}

// Returns the position of a layer or a parameter in the model: the embedding first, the head last.
std::int64_t layer_position(const std::string& name) {
  constexpr std::string_view kBlocks = "blocks.";
  if (name.starts_with(kBlocks)) return std::atoll(name.c_str() + kBlocks.size());
  const bool embeds = name == "embedding" || name.starts_with("tok.") || name.starts_with("pos.");
  return embeds ? -1 : std::numeric_limits<std::int64_t>::max();
}

// Removes the prefix "chunk1." of parameters on a rank with several chunks of the model.
std::string whole_name(const std::string& raw) {
  return raw.starts_with("chunk") ? raw.substr(raw.find('.') + 1) : raw;
}

PhaseClock::Time moved_by(PhaseClock::Time time, double by) {
  return time +
         std::chrono::duration_cast<PhaseClock::Time::duration>(std::chrono::duration<double>(by));
}

}  // namespace

// Measures the state of the engine. Called between backward and update, when all of it exists.
void Trainer::Impl::note_state() {
  const memory::LedgerCounts counts = ledger->counts();
  if (counts.total.now == 0) return;  // a LibTorch profiler replaced it: [Note: device memory]
  for (const MemoryCategory category :
       {MemoryCategory::params, MemoryCategory::grads, MemoryCategory::optimizer}) {
    std::int64_t& most = measured[std::string(name(category))];
    most = std::max(most, counts[category].now);
  }
}

// Called when a pass or a wait for another stage has ended; on a GPU, when it has been launched.
void Trainer::Impl::on_span(const pipeline::Span& span) {
  const std::string name = schedule::name(span.kind);
  if (name == "forward" && ledger->counts().total.now > 0) {
    std::int64_t& most = measured["activations"];
    most = std::max(most, ledger->counts()[MemoryCategory::activations].now);
  }
  if (trace.keeps_memory()) traced_passes.push_back(span);
  if (!device.is_cpu()) {
    clock.mark(name, span.micro);
    if (name.starts_with("backward")) note_state();
    return;
  }
  const std::int64_t waited_now = waited;
  const double in_all = seconds_between(span.begin, span.end);
  const double took = in_all - waited_s(std::exchange(counted, waited_now), waited_now);
  const bool bubble = name.starts_with("receive");
  if (name == "forward") now.forward_s += took;
  if (name.starts_with("backward")) now.backward_s += took;
  if (bubble) now.bubble_s += in_all;
  trace.span(bubble ? "bubble: " + name : name, span.begin, span.end, span.micro);
}

std::vector<data::Batch> Trainer::Impl::make_batches(std::uint64_t first) const {
  const c10::ParallelGuard alone(true);  // do not take threads from the computation
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
  std::vector<data::Batch> batches;
  for (std::int64_t k = 0; k < sampler.micro_batches; ++k) {
    const std::uint64_t sample = first + sampler.first(0, replica, k);
    data::Batch batch = source->batch(sample, sampler.micro_batch);
    check_tokens(*source, sample, batch.ids, 0, resolved.model.vocab, 0);
    check_tokens(*source, sample, batch.targets, data::kIgnored, resolved.model.vocab, 1);
    for (at::Tensor* each : {&batch.ids, &batch.targets, &batch.document_starts}) {
      *each = for_device(*each, device);
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

// Takes the data of the next step. `tokens` gets the number of this rank's targets that count.
std::vector<MicroBatch> Trainer::Impl::next_batches(double& tokens) {
  const HostTime began = host_now();
  auto step = data.take(static_cast<std::uint64_t>(samples(steps_done())));
  const HostTime end = host_now();
  now.data_s = seconds_between(began, end);
  now.data_prepare_s = seconds_between(step.begin, step.end);
  trace.span("wait: data", began, end);
  trace.span_on("data", str("data of step ", now.step), step.begin, step.end);
  std::vector<MicroBatch> batches;
  std::int64_t predicted = 0, micro = 0;
  for (data::Batch& batch : step.data) {
    predicted += batch.predicted;
    batches.push_back({std::move(batch.ids), std::move(batch.targets),
                       std::move(batch.document_starts), sampler.first(0, replica, micro++)});
  }
  tokens = static_cast<double>(predicted);
  return batches;
}

// Runs the passes and the update on the CPU, and measures both.
zero::PendingStep Trainer::Impl::step_on_host(const std::vector<MicroBatch>& batches,
                                              double tokens) {
  engine().begin({.micro_batches = static_cast<int>(batches.size()),
                  .tokens = parallel::counted_tokens(tokens, {own_part()})});
  counted = waited;
  const HostTime passes = host_now();
  model.run(batches, static_cast<std::uint64_t>(now.step - 1));
  now.passes_s = seconds_between(passes, host_now());
  note_state();
  const std::int64_t waited_before = waited;
  const HostTime update = host_now();
  zero::PendingStep step = engine().start_step(now.lr);
  model.end_step();
  const HostTime end = host_now();
  now.optimizer_s = seconds_between(update, end) - waited_s(waited_before, waited);
  trace.span("optimizer", update, end);
  return step;
}

zero::PendingStep Trainer::Impl::step_on_device(const std::vector<MicroBatch>& batches,
                                                double tokens) {
  clock.begin_step();
  zero::PendingStep step = model.start_step(
      batches, {.lr = now.lr, .tokens = tokens, .step = static_cast<std::uint64_t>(now.step - 1)});
  clock.mark("optimizer");
  clock.end_step();
  now.gpu = gpu.read();
  return step;
}

void Trainer::Impl::launch() {
  StepMetrics& out = now;
  out = {};
  out.step = steps_done() + 1;
  LrSchedule schedule = resolved.schedule;
  schedule.total = steps_in_all();
  out.lr = resolved.lr * schedule.factor(steps_done());
  out.tokens = resolved.tokens_per_step();
  const bool replays = model.graphed();
  ledger->reset_peak();
  memory::reset_device_peak(device);
  trace.begin_step(out.step);
  const std::int64_t waited_before = counted = waited;
  comm_clock.take();  // calls between steps, as of an evaluation, do not count
  const ParallelModel::Sent before = model.sent();
  const HostTime began = host_now();
  if (trace.keeps_memory()) {
    traced_passes.clear();
    ledger->start_recording();
  }

  double tokens = 0;
  const std::vector<MicroBatch> batches = next_batches(tokens);
  const memory::Charge held(ledger, MemoryCategory::temporary, bytes_of(batches));
  zero::PendingStep step =
      device.is_cpu() ? step_on_host(batches, tokens) : step_on_device(batches, tokens);
  const HostTime end = host_now();
  if (trace.keeps_memory()) trace_memory(began);
  note_state();
  out.comm_exposed_s = waited_s(waited_before, waited);
  out.step_s = seconds_between(began, end);  // on a GPU only the launch; finish() replaces it
  if (device.is_cpu()) {
    trace.span(str("step ", out.step), began, end);
    trace.begin_step(0);
  }

  const ParallelModel::Sent after = model.sent();
  comm::TrafficCounts all;
  for (const Axis axis : kAllAxes) {
    const comm::TrafficCounts own = after[axis] - before[axis];
    sent[axis] += static_cast<std::int64_t>(own.sent_bytes);
    all = all + own;
  }
  out.comm_s = comm_clock.take();
  out.sent_bytes = static_cast<std::int64_t>(all.sent_bytes);
  out.control_bytes = static_cast<std::int64_t>(all.control_bytes);
  note_memory(replays);
  ++launched;
  under_way.push_back({out, std::move(step)});
}

// Records the peak memory of this step. A replayed CUDA graph allocates nothing, because it owns
// its memory since it was recorded: then the peak of the recorded step counts.
void Trainer::Impl::note_memory(bool replayed) {
  memory::LedgerCounts counts = ledger->counts();
  const bool by_category = counts.total.now > 0;
  if (const auto usage = memory::device_usage(device)) counts.total = *usage;
  if (replayed) counts.total.peak = std::max(counts.total.peak, peak_outside_graph);
  peak_outside_graph = counts.total.peak;
  now.mem_bytes = counts.total.now;
  now.mem_peak_bytes = counts.total.peak;
  for (const auto& [name, bytes] :
       {std::pair<const char*, std::int64_t>{"buffers", counts[MemoryCategory::buffers].peak},
        {"temporary", counts[MemoryCategory::temporary].peak},
        {"peak", counts.total.peak}}) {
    if (!by_category && std::string_view(name) != "peak") continue;
    measured[name] = std::max(measured[name], bytes);
  }
}

// On a GPU the times are those at which the host launched the work, of both curves.
void Trainer::Impl::trace_memory(HostTime began) {
  std::vector<memory::MemoryPoint> points = ledger->stop_recording();
  // A replayed CUDA graph allocates nothing, and a LibTorch profiler replaces the ledger.
  if (points.size() <= 2 || ledger->counts().total.now == 0) return;
  trace.memory_over_time("memory", points);
  std::vector<simulator::MemoryPass> passes;
  for (const pipeline::Span& span : traced_passes) {
    if (!schedule::is_compute(span.kind)) continue;
    passes.push_back({span.kind, span.chunk, seconds_between(began, span.begin),
                      seconds_between(began, span.end)});
  }
  const auto bytes = [](std::int64_t value) { return static_cast<double>(value); };
  const planner::Memory whole{.params = bytes(plan.params),
                              .grads = bytes(plan.grads),
                              .optimizer = bytes(plan.optimizer),
                              .activations = bytes(plan.activations),
                              .buffers = bytes(plan.buffers),
                              .temporary = bytes(plan.temporary),
                              .not_at_once = bytes(plan.not_at_once)};
  const auto& mesh = model.mesh();
  const bool shares = mesh.group(kShardAxes).shares_memory();
  const auto over = simulator::memory_over_passes(
      whole, planner::pass_memory(question(config, resolved, shares), mesh.coordinate()), 0, passes,
      seconds_between(began, points.back().time));
  std::vector<memory::MemoryPoint> predicted;
  for (const auto& moment : over.moments) {
    predicted.push_back({moved_by(began, moment.seconds),
                         {plan.params, plan.grads, plan.optimizer, std::llround(moment.activations),
                          plan.buffers, std::llround(moment.temporary)}});
  }
  trace.memory_over_time("predicted memory", predicted);
}

// Returns the texts of all ranks; only that of this rank if communication is off.
std::vector<std::string> Trainer::Impl::texts_of_ranks(const std::string& mine) const {
  if (config.comm != Comm::on || world.size() == 1 || world.simulated()) return {mine};
  return parallel::gather_texts(world, mine, "what is not finite");
}

// Repeats the forward pass of a step, without gradients and dropout. Returns the first layer whose
// output is not finite on any rank; "" if all outputs are finite.
std::string Trainer::Impl::non_finite_output(std::int64_t step) {
  const at::NoGradGuard no_gradients;
  std::string first;
  const parallel::LayerWatch watch([&](const std::string& layer, const at::Tensor& output) {
    if (!first.empty() && layer_position(first) <= layer_position(layer)) return;
    if (!at::isfinite(output).all().item<bool>()) first = layer;
  });
  for (const data::Batch& batch : make_batches(static_cast<std::uint64_t>(samples(step - 1)))) {
    model.evaluate({{batch.ids, batch.targets, batch.document_starts}});
  }
  std::string found;
  for (const std::string& layer : texts_of_ranks(first)) {
    if (layer.empty()) continue;
    if (found.empty() || layer_position(layer) < layer_position(found)) found = layer;
  }
  return found;
}

// If the loss is not finite, the cause is in the forward pass. Otherwise it is in backward, which
// runs from the last layer to the first: the last parameter whose gradient is not finite is the
// closest to the cause.
std::string Trainer::Impl::find_non_finite(const zero::StepInfo& info, std::int64_t step) {
  if (!std::isfinite(info.loss)) {
    const std::string layer = non_finite_output(step);
    if (!layer.empty()) {
      return str("the loss is not finite, and the output of layer ", layer,
                 " is the first in the forward pass that is not");
    }
  }
  const std::string mine = info.non_finite_index < 0
                               ? ""
                               : str(info.non_finite_index, " ", whole_name(info.non_finite_param));
  std::string param;
  std::pair<std::int64_t, std::int64_t> best{-2, -1};  // layer, index in it
  for (const std::string& text : texts_of_ranks(mine)) {
    const std::size_t space = text.find(' ');
    if (space == std::string::npos) continue;
    const std::string name = text.substr(space + 1);
    const std::pair<std::int64_t, std::int64_t> place{layer_position(name),
                                                      std::atoll(text.c_str())};
    if (place <= best) continue;
    best = place;
    param = name;
  }
  if (param.empty()) return "the loss is not finite";
  return str("the gradient of ", param, " is the first in the backward pass that is not finite");
}

// On a GPU the counts are read rarely, because the host waits for them.
bool Trainer::Impl::takes_loads(std::int64_t step) const {
  constexpr std::int64_t kStepsOnDevice = 10;
  if (!resolved.model.experts.any() || config.comm != Comm::on) return false;
  return device.is_cpu() || step % kStepsOnDevice == 0;
}

void Trainer::Impl::finish(std::size_t under_way_at_most) {
  while (under_way.size() > under_way_at_most) {
    UnderWay oldest = std::move(under_way.front());
    under_way.pop_front();
    StepMetrics& out = oldest.metrics;
    const zero::StepInfo info = oldest.step.get();
    out.loss = info.loss;
    out.grad_norm = info.grad_norm;
    out.skipped = info.skipped;
    out.loss_scale = info.loss_scale;
    if (!device.is_cpu()) {
      const PhaseClock::Step times = clock.take();
      put_times(out, times);
      for (const PhaseClock::Phase& phase : times.phases) {
        const auto begin = moved_by(times.began, phase.from_s);
        trace.span(phase.name, begin, moved_by(begin, phase.seconds), phase.micro);
      }
      trace.span(str("step ", out.step), times.began, moved_by(times.began, times.work_s));
    }
    const bool alone = world.simulated() && world.size() > 1;  // values of other ranks are invalid
    if (out.broke() && !alone && (config.on_nan != OnNan::skip || !found_non_finite)) {
      out.non_finite = find_non_finite(info, out.step);
      found_non_finite = true;
    }
    if (takes_loads(out.step)) out.experts = model.take_expert_loads();
    history.push_back(out);
    if (out.broke() && config.on_nan == OnNan::stop && !alone) {
      throw Error(str("step ", out.step, ": ", out.non_finite, " (loss ", info.loss, ", norm ",
                      info.grad_norm, "). If the loss grew before, lower --lr (now ", out.lr,
                      ") or raise --warmup. --on-nan skip skips such steps."));
    }
  }
}

void Trainer::launch() {
  const memory::OwnerScope owner(impl_->ledger);
  impl_->launch();
}

void Trainer::finish(std::size_t under_way_at_most) {
  const memory::OwnerScope owner(impl_->ledger);
  // On the CPU launch() finishes the step. While a trace is recorded, steps must not overlap.
  const bool apart = impl_->device.is_cpu() || impl_->trace.keeps();
  impl_->finish(apart ? 0 : under_way_at_most);
}

StepMetrics Trainer::step() {
  launch();
  finish();
  return impl_->history.back();
}

}  // namespace tessera::train
