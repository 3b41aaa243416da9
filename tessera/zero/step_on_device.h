#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/nn/gpu.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/step_sums.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// What follows the last backward of a step, on a GPU: the kernels of kernels/cuda/optimizer.h, the
// tables that tell them where everything lies, and the numbers that the host gives and gets.
// Nothing here waits for the device but counts(), and the exchange between ranks whose backend
// moves host memory.
class StepOnDevice {
 public:
  // Why an optimizer is not run this way; "" if it is.
  static std::string problem(const Plan& plan, const Update& update);
  StepOnDevice(const UpdateContext& context, const Update& update, const Reducer& reducer);

  // Before a backward: what a loss of this type is multiplied by, as a number on the device.
  // Inside a capture the number of prepare() counts.
  at::Tensor factor(double value, at::ScalarType type);
  // Once more, for the backward alone; undefined where gradients are not scaled.
  at::Tensor loss_scale() const;

  // Sums over all ranks and the decision. `loss`: fp64 on the device, or undefined.
  void decide(const at::Tensor& loss, const std::vector<bool>& used, const StepSettings& settings,
              const RankStep& own, Stopwatch& waiting);
  void update();
  // Nothing, where all this was captured.
  PendingStep result();

  // [Note: captured steps] in engine.h.
  void prepare(double factor, const StepSettings& settings, const RankStep& own);
  PendingStep replayed();
  std::string capture_problem() const;

  // What is counted on the device. Waits.
  struct Counts {
    std::int64_t steps = 0;
    double loss_scale = 1;
    std::int64_t good_steps = 0;
    std::vector<std::int64_t> updates;
  };
  Counts counts() const;
  void set_counts(const Counts& counts);

 private:
  // The parameter of each piece of the sum of squares. Results of steps share it, and
  // may outlive the engine.
  struct SquareOwners {
    std::vector<int> params;         // by piece
    std::vector<std::string> names;  // by parameter
  };
  class StepOnItsWay;
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
  const bool scaled_;
  // StepInput and its bytes, as wanted and as on the device: those of the parameters, filled up to
  // eight, and a RankStep. The kernels carry them all as if they were parameters.
  std::vector<std::uint8_t> input_, sent_;
  const std::size_t bytes_;     // behind StepInput
  std::vector<bool> captured_;  // the parameters that are used in a replay
  bool has_sent_ = false;
  at::Tensor device_input_, factor32_, factor64_;
  at::Tensor state_, loss_scale_, updates_, infos_, steps_, result_;
  std::vector<kernels::cuda::ParamInfo> sent_infos_;  // as they are on the device
  at::Tensor sums_, rows_, parts_, part_steps_;
  at::Tensor squares_, partials_;
  std::shared_ptr<const SquareOwners> square_owners_;
  std::size_t square_count_ = 0;
  std::vector<SpaceTable> spaces_;
};

}  // namespace tessera::zero
