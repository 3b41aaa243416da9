#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/zero/engine.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/global_loss.h"
#include "tessera/zero/pass_state.h"
#include "tessera/zero/reducer.h"
#include "tessera/zero/step_on_device.h"
#include "tessera/zero/step_sums.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// The engine's parts put together: who is told what, in which order. Shared, so that hooks which
// outlive the engine find it gone.
struct Engine::Impl : std::enable_shared_from_this<Engine::Impl> {
  Impl(std::shared_ptr<torch::nn::Module> model, DataGroups groups, EngineOptions options);

  // Throws UsageError if the program has changed a parameter in a way that would be lost,
  // [Note: changed parameters] in gatherer.h: replaced it, unfrozen it, or, at stage 3, written to
  // it. `call`: what the message begins with.
  void check_params(const char* call) const;
  void check_not_replaced(const char* call) const;
  // Makes writes in place part of the master copies, which the next update starts from.
  void take_writes();
  RankStep rank_step(const StepSettings& settings) const;
  // Ends a step without an update.
  void abandon_step();
  void refresh_master(int param) const;
  void write_master(int param, std::int64_t at, const at::Tensor& values) const;
  std::vector<at::Tensor> values_of(const torch::nn::Module& from, std::string& problem) const;
  void load_parameters(const torch::nn::Module& from);
  void check_same_settings() const;
  // The type of the module, for messages.
  std::string model_name() const;
  // The engine whose backward() runs on this thread, or null.
  static const Impl*& running();
  [[noreturn]] void refuse_backward(const std::string& reached);

  void attach();  // hooks and observers
  void detach();
  void check_start();
  void close() noexcept;  // the engine goes

  // What the observers and hooks report.
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
  // Fills in what `how` leaves open. Throws UsageError for values that no optimizer takes.
  StepSettings settings_of(const StepOptions& how) const;
  PendingStep start_step(const StepOptions& how);
  StepInfo step_on_host(const StepSettings& settings);
  void prepare_step(const Begin& begin, const StepOptions& how);
  PendingStep replayed();
  // The host counts steps and updates again where the device has counted them.
  void settle();

  const std::shared_ptr<torch::nn::Module> model;
  const DataGroups groups;
  const comm::Group& group;  // all data-parallel ranks: groups.all
  const EngineOptions options;
  Plan plan;
  Buffers buffers;
  Gatherer gatherer;
  Reducer reducer;
  std::unique_ptr<Update> update;
  std::string device_problem;            // why `device` is not there
  std::unique_ptr<StepOnDevice> device;  // [Note: steps on a device]
  bool unsettled = false;
  double loss_scale = 0;  // as settle() found it
  std::int64_t good_steps = 0;
  PassState passes;
  GlobalLoss loss;
  std::vector<std::shared_ptr<nn::UnitObserver>> observers;
  Stopwatch optimizer_time;
  int visiting = 0;                // units in a backward of another engine, [Note: visits]
  std::vector<bool> written;       // by parameter: the program wrote to it since the last step
  std::uint64_t written_bits = 0;  // hash of what it wrote, where ranks would keep their own
  std::atomic<std::thread::id> caller{};  // of backward() or step(), while one runs
};

}  // namespace tessera::zero
