#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/data/prefetch.h"
#include "tessera/data/source.h"
#include "tessera/memory/allocator.h"
#include "tessera/memory/device_memory.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/matmul_precision.h"
#include "tessera/pipeline/executor.h"
#include "tessera/process/nvml.h"
#include "tessera/train/from_config.h"
#include "tessera/train/phase_clock.h"
#include "tessera/train/rank_phases.h"
#include "tessera/train/run_trace.h"
#include "tessera/train/saving.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

using HostTime = std::chrono::steady_clock::time_point;
inline HostTime host_now() { return std::chrono::steady_clock::now(); }
inline double seconds_between(HostTime from, HostTime to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Trainer::Impl {
  // Members are made, and calls run, in a scope that charges `l` ([Note: owner]).
  Impl(RunConfig c, comm::Group w, std::shared_ptr<memory::Ledger> l)
      : config(std::move(c)),
        world(std::move(w)),
        resolved(resolve(config, world.size())),
        ledger(std::move(l)),
        device(device_of(config, world.rank(), world.size())),
        limit(device, config.memory_limit),
        source(make_source(config, resolved)),
        validation(make_validation_source(config, resolved)),
        trace(world.rank(), config.trace.empty() ? 0 : config.trace_steps),
        // With --comm off every rank is a separate replica, with its own data.
        model(models::layers_of(resolved.model, nn::ParamOptions::unallocated(at::device(device)),
                                vocab_multiple(config)),
              mesh_of(config, resolved, config.comm == Comm::off ? comm::Group() : world),
              parallel_options(config, resolved, device, ledger)),
        plan(train::plan(config, resolved, model.mesh().coordinate(),
                         model.mesh().group(kShardAxes).shares_memory())),
        sampler{resolved.axes.ranks(kDataAxes), resolved.grad_accum, config.micro_batch},
        replica(config.comm == Comm::off ? world.rank() : model.mesh().group(kDataAxes).rank()),
        saver(config, resolved, model, config.comm == Comm::off ? comm::Group() : world),
        gpu(device.is_cpu() ? -1 : device.index()),
        data([this](std::uint64_t first) { return make_batches(first); },
             static_cast<std::uint64_t>(sampler.global_batch()),
             static_cast<std::size_t>(config.data_ahead)) {
    model.watch([this](const pipeline::Span& span) { on_span(span); });
    for (const auto& [axis, group] : model.groups()) {
      group.observe(std::make_shared<CallListener>(axis, trace, comm_clock, waited));
    }
  }
  // The groups may outlive their observers.
  ~Impl() {
    for (const auto& [axis, group] : model.groups()) group.observe(nullptr);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void launch();
  // Returns this rank's data of the step that begins with sample `first`. Called by the thread of
  // `data`.
  std::vector<data::Batch> make_batches(std::uint64_t first) const;
  std::vector<MicroBatch> next_batches(double& tokens);
  zero::PendingStep step_on_host(const std::vector<MicroBatch>& batches, double tokens);
  zero::PendingStep step_on_device(const std::vector<MicroBatch>& batches, double tokens);
  void note_memory(bool replayed);
  // Adds the memory of the current step to the trace: measured since `began`, and predicted.
  void trace_memory(HostTime began);
  // Collective. Describes the first layer or tensor of a step that is not finite.
  std::string find_non_finite(const zero::StepInfo& info, std::int64_t step);
  bool takes_loads(std::int64_t step) const;
  std::string non_finite_output(std::int64_t step);
  std::vector<std::string> texts_of_ranks(const std::string& mine) const;
  // Waits until at most this number of launched steps is unfinished.
  void finish(std::size_t under_way_at_most);
  void on_span(const pipeline::Span& span);
  void note_state();
  void compare_ranks(Summary& out) const;
  std::vector<data::Token> answer(const data::Question& question);
  Evaluation evaluate();
  // Number of samples that all ranks take in the first `steps` steps.
  std::int64_t samples(std::int64_t steps) const {
    return steps * sampler.global_batch() + sample_shift;
  }
  std::int64_t steps_done() const { return steps_before + launched; }
  std::int64_t steps_in_all() const { return train::steps_in_all(config, resolved, sample_shift); }
  // Returns the seconds between two values of `waited`. Integer nanoseconds are subtracted: a
  // difference of seconds may be negative if the compiler fuses the multiplication into it.
  static double waited_s(std::int64_t from, std::int64_t to) {
    return static_cast<double>(to - from) * 1e-9;
  }
  zero::Engine& engine() { return model.engine(); }
  // Part of each sequence that this rank has.
  SequencePart own_part() const {
    return {model.mesh().coordinate()[Axis::cp], model.mesh().axes().size(Axis::cp)};
  }

  const RunConfig config;
  const comm::Group world;
  const Resolved resolved;
  const std::optional<double> predicted_s = predicted_step(config, resolved);  // of a step
  const std::shared_ptr<memory::Ledger> ledger;
  const c10::Device device;
  const nn::MatmulPrecisionScope matmul_precision{config.matmul_precision};
  const nn::PrecisionScope precision{config.precision};
  const memory::DeviceLimit limit;  // before any allocation on the device
  const std::unique_ptr<data::Source> source;
  const std::unique_ptr<data::Source> validation;  // null if there is none
  // Declared before the model, whose calls are observed until it is destroyed.
  Trace trace;
  std::vector<pipeline::Span> traced_passes;  // of the step that is being launched
  CommClock comm_clock;
  CallListener::Waited waited{0};  // ns spent waiting for communication since the run began
  std::int64_t counted = 0;        // value of `waited` up to which it was subtracted from spans
  ParallelModel model;
  const planner::RunPlan plan;
  const data::Sampler sampler;
  const int replica;  // index of this rank's part of the batch

  Saver saver;
  std::int64_t steps_before = 0;  // steps of the run that was resumed
  // Offset of the next sample from steps · batch. Not 0 after a rollback skipped data, or if the
  // resumed run had another batch.
  std::int64_t sample_shift = 0;
  int rollbacks = 0;
  bool found_non_finite = false;  // the cause of a broken step was searched for
  // [Note: steps under way] On a GPU a step is launched while the previous one still runs. The
  // results of a step are read after the next one has been launched.
  struct UnderWay {
    StepMetrics metrics;
    zero::PendingStep step;
  };
  std::int64_t launched = 0;            // number of steps in this run
  std::deque<UnderWay> under_way;       // launched steps that are unfinished
  std::vector<StepMetrics> history;     // finished steps
  StepMetrics now;                      // of the step that is being launched
  PhaseClock clock{device};             // used only on a GPU
  process::GpuMonitor gpu;              // used only on a GPU
  std::int64_t peak_outside_graph = 0;  // bytes, in the last step that was not a graph replay
  MemoryBytes measured;                 // maximum of each category
  SentBytes sent;
  RecentPhases recent;                            // of all ranks, on rank 0
  std::int64_t recent_step = 0;                   // last step in `recent`
  std::optional<HostTime> ranks_put;              // time of the last line with all ranks
  std::optional<Evaluation> evaluation;           // the last one
  data::Prefetch<std::vector<data::Batch>> data;  // last, because its thread uses the others
};

}  // namespace tessera::train
