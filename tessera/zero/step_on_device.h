#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/nn/gpu.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/matrices_on_device.h"
#include "tessera/zero/step_sums.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// Norm, decision and update of a step on a GPU, with the kernels of kernels/cuda/optimizer.h: their
// pointer tables, inputs and results. Only counts() waits for the device, and the exchange between
// ranks if their backend uses host memory.
class StepOnDevice {
 public:
  // Returns the reason that this optimizer cannot run on the device; "" if it can.
  static std::string problem(const Plan& plan, const Update& update);
  StepOnDevice(const UpdateContext& context, const Update& update, const Reducer& reducer);

  // Returns the factor of a loss of this type as a number on the device. Inside a capture, the
  // value given to prepare() is used instead.
  at::Tensor factor(double value, at::ScalarType type);
  // Returns the additional factor for backward only; undefined if gradients are not scaled.
  at::Tensor loss_scale() const;

  // Sums over all ranks and decides whether to skip. `loss`: fp64 on the device, or undefined.
  void decide(const at::Tensor& loss, const std::vector<bool>& used, const StepSettings& settings,
              const RankStep& own, Stopwatch& waiting);
  void update();
  // Returns the step; empty inside a capture.
  PendingStep result();

  // [Note: captured steps] in engine.h.
  void prepare(double factor, const StepSettings& settings, const RankStep& own);
  PendingStep replayed();
  std::string capture_problem() const;

  // Counts kept on the device. counts() waits for it.
  struct Counts {
    std::int64_t steps = 0;
    double loss_scale = 1;
    std::int64_t good_steps = 0;
    std::vector<std::int64_t> updates;
  };
  Counts counts() const;
  void set_counts(const Counts& counts);

 private:
  // Parameter of each piece of the sum of squares. Shared with pending results, which may outlive
  // the engine.
  struct SquareOwners {
    std::vector<int> params;         // by piece
    std::vector<std::string> names;  // by parameter
  };
  class PendingResult;
  struct SpaceTable {
    kernels::cuda::UpdateTypes types;
    at::Tensor pieces;
    std::size_t count = 0;
  };
  bool capturing() const;
  nn::gpu::StreamOf stream() const;
  at::Tensor memory(std::size_t bytes) const;
  at::Tensor on_device(const void* data, std::size_t bytes) const;
  void make_tables(const Update& update, const Reducer& reducer, std::uint64_t seed);
  void set_used(const std::vector<bool>& used);
  void set_settings(const StepSettings& settings, const RankStep& own);
  void send();
  bool is_staged() const;
  void exchange(Stopwatch& waiting);
  void exchange_on_host(Stopwatch& waiting);

  const Plan& plan_;
  const EngineOptions& options_;
  const DataGroups groups_;
  const comm::Group& group_;  // all data-parallel ranks
  const std::shared_ptr<memory::Ledger> ledger_;
  const c10::Device device_;
  const rules::Rule rule_;
  const double weight_decay_;
  // Matrices that are updated as a whole, and factors of the learning rate by parameter.
  double matrix_weight_decay_ = 0;
  std::vector<double> lr_factors_;
  const bool scaled_;
  // StepInput followed by bytes_ bytes: one per parameter, padded to a multiple of eight, and a
  // RankStep. The kernels treat all of these bytes like those of parameters. input_: current
  // values; sent_: values on the device.
  std::vector<std::uint8_t> input_, sent_;
  const std::size_t bytes_;     // number of bytes after StepInput
  std::vector<bool> captured_;  // by parameter: used in a replay
  bool has_sent_ = false;
  at::Tensor device_input_, factor32_, factor64_;
  at::Tensor state_, loss_scale_, updates_, infos_, steps_, result_;
  std::vector<kernels::cuda::ParamInfo> sent_infos_;  // values on the device
  at::Tensor sums_, rows_, parts_, part_steps_;
  at::Tensor squares_, partials_;
  std::shared_ptr<const SquareOwners> square_owners_;
  std::size_t square_count_ = 0;
  std::vector<SpaceTable> spaces_;
  std::unique_ptr<MatricesOnDevice> matrices_;  // null: there are none
};

}  // namespace tessera::zero
