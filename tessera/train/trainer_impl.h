#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/data/prefetch.h"
#include "tessera/data/sampler.h"
#include "tessera/memory/allocator.h"
#include "tessera/memory/device_limit.h"
#include "tessera/models/language_model.h"
#include "tessera/process/nvml.h"
#include "tessera/train/from_config.h"
#include "tessera/train/phase_clock.h"
#include "tessera/train/rank_phases.h"
#include "tessera/train/saving.h"
#include "tessera/train/trace.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

using HostTime = std::chrono::steady_clock::time_point;
inline HostTime host_now() { return std::chrono::steady_clock::now(); }
inline double seconds_between(HostTime from, HostTime to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Trainer::Impl {
  // Everything is made, and every call runs, in a scope that charges `l` ([Note: owner]).
  Impl(TrainConfig c, comm::Group w, std::shared_ptr<memory::Ledger> l)
      : config(std::move(c)),
        world(std::move(w)),
        resolved(resolve(config, world.size())),
        ledger(std::move(l)),
        device(device_of(config, world.rank(), world.size())),
        limit(device, config.memory_limit),
        source(make_source(config, resolved)),
        validation(make_validation_source(config, resolved)),
        trace(world.rank(), config.trace.empty() ? 0 : config.trace_steps),
        // With --comm off every rank is a replica of its own, on its own data.
        model(models::layers_of(resolved.model, nn::ParamOptions::unallocated(at::device(device)),
                                vocab_multiple(config)),
              mesh_of(config, resolved, config.comm == "off" ? comm::Group() : world),
              parallel_options(config, resolved, device, ledger)),
        plan(train::plan(config, resolved, model.mesh().coordinate(),
                         model.mesh().group(Axis::dp_shard).shares_memory())),
        sampler{resolved.axes.dp(), resolved.grad_accum, config.micro_batch},
        replica(config.comm == "off" ? world.rank() : model.mesh().dp().rank()),
        saver(config, resolved, model, config.comm == "off" ? comm::Group() : world),
        gpu(device.is_cpu() ? -1 : device.index()),
        data([this](std::uint64_t first) { return make_batches(first); },
             static_cast<std::uint64_t>(sampler.global_batch()),
             static_cast<std::size_t>(config.data_ahead)) {
    model.watch([this](const pipeline::Span& span) { on_span(span); });
    for (const auto& [axis, group] : model.groups()) {
      group.observe(std::make_shared<CallListener>(axis, trace, waited));
    }
  }
  // The groups may outlive what listens.
  ~Impl() {
    for (const auto& [axis, group] : model.groups()) group.observe(nullptr);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void launch();
  // This rank's part of the step that begins with sample `first`. From a thread of its own.
  std::vector<data::Batch> make_batches(std::uint64_t first) const;
  std::vector<MicroBatch> next_batches(double& tokens);
  zero::PendingStep step_on_host(const std::vector<MicroBatch>& batches, double tokens);
  zero::PendingStep step_on_device(const std::vector<MicroBatch>& batches, double tokens);
  void note_memory(bool replayed);
  // Collective: the first layer or tensor of a step that is not finite, in words.
  std::string find_non_finite(const zero::StepInfo& info, std::int64_t step);
  std::string non_finite_output(std::int64_t step);
  std::vector<std::string> texts_of_ranks(const std::string& mine) const;
  // Until at most so many steps are under way.
  void finish(std::size_t under_way_at_most);
  void on_span(const pipeline::Span& span);
  void note_state();
  void compare_ranks(Summary& out) const;
  std::vector<data::Token> answer(const data::Question& question);
  Evaluation evaluate();
  // Taken from the data so far, over all ranks.
  std::int64_t samples(std::int64_t steps) const {
    return steps * sampler.global_batch() + sample_shift;
  }
  std::int64_t steps_done() const { return steps_before + launched; }
  std::int64_t steps_in_all() const { return train::steps_in_all(config, resolved, sample_shift); }
  // Seconds between two values of `waited`. Whole nanoseconds are subtracted: a difference of
  // seconds may be below 0 where the compiler fuses the product of one with it.
  static double waited_s(std::int64_t from, std::int64_t to) {
    return static_cast<double>(to - from) * 1e-9;
  }
  zero::Engine& engine() { return model.engine(); }

  const TrainConfig config;
  const comm::Group world;
  const Resolved resolved;
  const std::optional<double> predicted_s = predicted_step(config, resolved);  // of a step
  const std::shared_ptr<memory::Ledger> ledger;
  const c10::Device device;
  const memory::DeviceLimit limit;  // before anything lies on the device
  const std::unique_ptr<data::Source> source;
  const std::unique_ptr<data::Source> validation;  // null: there is none
  // Before the model: its calls are told of to the end.
  Trace trace;
  CallListener::Waited waited{0};  // for communication, since the run began
  std::int64_t counted = 0;        // nanoseconds of it that were taken off a span
  ParallelModel model;
  const planner::RunPlan plan;
  const data::Sampler sampler;
  const int replica;  // which part of the batch this rank has

  Saver saver;
  std::int64_t steps_before = 0;  // done by the run that was resumed
  // Of the next sample, against steps · batch: after data was passed over, or with another batch.
  std::int64_t sample_shift = 0;
  int rollbacks = 0;
  bool found_non_finite = false;  // a step that broke was looked into
  // [Note: steps under way] On a GPU a step is launched while the one before still runs: what came
  // of it is read when the next one has been launched.
  struct UnderWay {
    StepMetrics metrics;
    zero::PendingStep step;
  };
  std::int64_t launched = 0;            // steps, in this run
  std::deque<UnderWay> under_way;       // of those
  std::vector<StepMetrics> history;     // the others
  StepMetrics now;                      // of the step that is being launched
  PhaseClock clock{device};             // of a GPU
  process::GpuMonitor gpu;              // likewise
  std::int64_t peak_outside_graph = 0;  // bytes, in the last step that allocated any
  MemoryBytes measured;                 // the most of each category where it is looked at
  SentBytes sent;
  RecentPhases recent;                            // of all ranks, on rank 0
  std::int64_t told_step = 0;                     // the last one in it
  std::optional<HostTime> ranks_put;              // when they were last put into a line
  std::optional<Evaluation> evaluation;           // the last one
  data::Prefetch<std::vector<data::Batch>> data;  // last: its thread uses the others
};

}  // namespace tessera::train
