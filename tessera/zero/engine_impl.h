#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/zero/engine.h"
#include "tessera/zero/engine_recovery.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/global_loss.h"
#include "tessera/zero/pass_state.h"
#include "tessera/zero/reducer.h"
#include "tessera/zero/step_on_device.h"
#include "tessera/zero/step_sums.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// Implementation of Engine: connects its components and defines the order of their calls. Held by
// shared_ptr so that hooks that outlive the engine can detect its destruction.
struct Engine::Impl : std::enable_shared_from_this<Engine::Impl> {
  Impl(std::shared_ptr<torch::nn::Module> model, DataGroups groups, EngineOptions options);

  // Throws UsageError if the program has changed a parameter in a way that would be lost,
  // [Note: changed parameters] in gatherer.h: replaced it, unfrozen it, or, at stage 3, written to
  // it. `call`: start of the message.
  void check_params(const char* call) const;
  void check_not_replaced(const char* call) const;
  // Copies in-place writes to the master copies, which the next update starts from.
  void take_writes();
  RankStep rank_step(const StepSettings& settings) const;
  // Ends a step without an update.
  void abandon_step();
  void refresh_master(int param) const;
  void write_master(int param, std::int64_t at, const at::Tensor& values) const;
  std::vector<at::Tensor> values_of(const torch::nn::Module& from, std::string& problem) const;
  void load_parameters(const torch::nn::Module& from);
  void check_same_settings() const;
  // Returns the type of the module, for messages.
  std::string model_name() const;
  // Returns the engine whose backward() runs on this thread, or null.
  static const Impl*& running();
  [[noreturn]] void refuse_backward(const std::string& reached);

  void attach();  // hooks and observers
  void detach();
  void check_start();
  void close() noexcept;  // the engine is destroyed

  // Callbacks of the observers and hooks.
  void enter_forward(int unit, bool differentiable);
  void leave_forward(int unit, bool differentiable);
  void enter_backward(int unit);
  void leave_backward(int unit);
  void on_gradient(int param);
  nn::GradientPlace::Place take_place(int param);

  // A step, in step.cpp.
  void begin_step(int micro_batches);
  void end_step();
  bool on_device(const at::Tensor& output) const;
  at::Tensor scaled_up(const at::Tensor& root) const;
  void backward(const at::Tensor& output, const at::Tensor& gradient, const BackwardPass& pass);
  void finish_pass(int model_chunk);
  void finish_reduction();
  void add_tied();
  void discard();
  // Fills in the defaults of `how`. Throws UsageError for values that no optimizer accepts.
  StepSettings settings_of(const StepOptions& how) const;
  PendingStep start_step(const StepOptions& how);
  StepInfo step_on_host(const StepSettings& settings);
  StepInfo apply_outcome();  // not collective, apart from matrix optimizers
  void prepare_step(const Begin& begin, const StepOptions& how);
  PendingStep replayed();
  // Copies the counts of steps and updates from the device to the host, if they changed there.
  void fetch_counts();

  // Add shards of the state, in state.cpp. A frozen parameter needs a reader.
  void add_shards(std::vector<StateShard>& shards, int param, StateScope scope,
                  Gatherer::Reader* reader = nullptr) const;
  void add_buffers(std::vector<StateShard>& shards) const;

  const std::shared_ptr<torch::nn::Module> model;
  const DataGroups groups;
  const comm::Group& group;  // all data-parallel ranks: groups.all
  const EngineOptions options;
  Plan plan;
  Buffers buffers;
  Gatherer gatherer;
  Reducer reducer;
  std::unique_ptr<Update> update;
  std::string device_problem;            // reason that `device` is null
  std::unique_ptr<StepOnDevice> device;  // [Note: steps on a device]
  bool counts_on_device = false;
  double loss_scale = 0;  // as of the last fetch_counts()
  std::int64_t good_steps = 0;
  PassState passes;
  GlobalLoss loss;
  // [Note: decided steps].
  std::int64_t decided = 0;
  std::optional<StepSettings> undecided;  // settings of a step that waits for its outcome
  std::optional<StepOutcome> outcome;
  std::vector<std::shared_ptr<nn::UnitObserver>> observers;
  Stopwatch optimizer_time;
  int visiting = 0;                // units in a backward of another engine, [Note: visits]
  std::vector<bool> written;       // by parameter: the program wrote to it since the last step
  std::uint64_t written_bits = 0;  // stage 0: hash of the written values, to compare ranks
  std::atomic<std::thread::id> caller{};  // thread inside backward() or step(), if any
};

}  // namespace tessera::zero
