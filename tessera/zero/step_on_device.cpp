#include "tessera/zero/step_on_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/nn/gpu.h"
#include "tessera/zero/same_model.h"
#include "tessera/zero/step_sums.h"

namespace tessera::zero {
namespace {

namespace cuda = kernels::cuda;

std::optional<DType> gpu_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    default: return std::nullopt;
  }
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

at::Tensor pinned_bytes(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::dtype(at::kByte).pinned_memory(true));
}

template <class T>
T* data_of(const at::Tensor& bytes) {
  return bytes.defined() ? static_cast<T*>(bytes.mutable_data_ptr()) : nullptr;
}

// RankStep of all ranks of a group, copied to the host asynchronously.
struct RankSteps {
  RankSteps() = default;
  // `rows`: bytes on the device, one row per rank that ends with its RankStep.
  RankSteps(comm::Group ranks, const at::Tensor& rows) : group(std::move(ranks)) {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(RankStep));
    const at::Tensor all = rows.view({group.size(), -1});
    const at::Tensor last = all.narrow(1, all.size(1) - kBytes, kBytes).contiguous();
    host = pinned_bytes(static_cast<std::size_t>(last.numel()));
    host.copy_(last.view(-1), /*non_blocking=*/true);
  }
  // Call it after the copy has completed.
  std::vector<RankStep> get() const {
    std::vector<RankStep> ranks(host.defined() ? static_cast<std::size_t>(group.size()) : 0);
    if (host.defined())
      std::memcpy(static_cast<void*>(ranks.data()), host.const_data_ptr(), host.nbytes());
    return ranks;
  }
  comm::Group group;
  at::Tensor host;  // undefined: nothing to compare
};

comm::Call control_call(const char* label) {
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  return call;
}

bool is_scaled(const Plan& plan) {
  return std::any_of(plan.spaces.begin(), plan.spaces.end(), [](const Space& space) {
    return space.trainable && space.grad_dtype == at::kHalf;
  });
}

}  // namespace

// Result of a step, copied to the host asynchronously.
class StepOnDevice::PendingResult final : public PendingStep::State {
 public:
  PendingResult(const StepOnDevice& step, bool stops, RankSteps ranks, RankSteps parts)
      : host_(pinned_bytes(sizeof(cuda::StepResult))),
        partials_(pinned_bytes(step.partials_.nbytes())),
        owners_(step.square_owners_),
        arrived_(step.device_.type()),
        stops_(stops),
        scaled_(step.scaled_),
        ranks_(std::move(ranks)),
        parts_(std::move(parts)) {
    host_.copy_(step.result_, /*non_blocking=*/true);
    // The next step overwrites these sums, which locate gradients that are not finite.
    partials_.copy_(step.partials_, /*non_blocking=*/true);
    arrived_.record(current_stream(step.device_));
  }
  bool ready() const override { return arrived_.query(); }
  StepInfo get() override {
    arrived_.synchronize();
    // Ranks that differ have already made different updates, so this error ends training.
    const std::vector<RankStep> ranks = ranks_.get();
    check_ranks(ranks_.group, ranks);
    check_parts(parts_.group, parts_.get());
    if (!ranks.empty() && !any_has_work(ranks)) throw NoBackward();
    cuda::StepResult result;
    std::memcpy(&result, host_.const_data_ptr(), sizeof(result));
    // An overflow caused by the loss scale does not stop training, unless the scale is already 1.
    const bool overflow = scaled_ && std::isfinite(result.loss) && result.loss_scale > 1;
    StepInfo info;
    info.loss = result.loss;
    info.grad_norm = result.norm;
    info.skipped = result.skipped != 0;
    info.loss_scale = result.loss_scale;
    if (info.skipped) find_non_finite(info);
    if (info.skipped && stops_ && !overflow) {
      throw Error(non_finite_text(result.steps + 1, info));
    }
    return info;
  }

 private:
  void find_non_finite(StepInfo& info) const {
    const auto* const sums = static_cast<const double*>(partials_.const_data_ptr());
    for (std::size_t i = owners_->params.size(); i-- > 0;) {
      if (std::isfinite(sums[i])) continue;
      info.non_finite_index = owners_->params[i];
      info.non_finite_param = nth(owners_->names, info.non_finite_index);
      return;
    }
  }

  const at::Tensor host_, partials_;
  const std::shared_ptr<const SquareOwners> owners_;
  c10::Event arrived_;
  const bool stops_, scaled_;
  const RankSteps ranks_, parts_;
};

std::string StepOnDevice::problem(const Plan& plan, const Update& update) {
  if (plan.params.empty()) return "this rank's part of the model has no parameters";
  if (!plan.params.front().tensor.is_cuda()) return "the model is not on a GPU";
  if (!cuda::built()) return "this program was built without GPU kernels (nvcc was not found)";
  if (update.rule() == nullptr) return "the optimizer is not elementwise";
  for (const Space& space : plan.spaces) {
    if (!space.trainable) continue;
    const auto param = gpu_type(space.dtype), grad = gpu_type(space.grad_dtype);
    const bool known =
        param && grad && (*grad == *param || *grad == DType::f32) &&
        (*param == DType::f32 ? !space.master : *param == DType::bf16 || space.master);
    if (!known) return str("there is no kernel for parameters of type ", space.describe());
  }
  return "";
}

// [Note: experts on a GPU] The flags of used parameters are combined by their index over all ranks,
// so an expert counts as used if one at the same place is used on any rank. Its gradient is then
// zero, and only weight decay and momentum move it.
static void expect_equal_counts(const comm::Group& group, std::size_t own) {
  for (const std::int64_t count : gather_numbers(group, static_cast<std::int64_t>(own))) {
    if (count == static_cast<std::int64_t>(own)) continue;
    throw UsageError(str("Ranks of group ", group.name(), " have ", own, " and ", count,
                         " parameters, but on GPUs each must have the same number of experts. "
                         "Choose an ep that divides the number of experts"));
  }
}

StepOnDevice::StepOnDevice(const UpdateContext& context, const Update& update,
                           const Reducer& reducer)
    : plan_(context.plan),
      options_(context.options),
      groups_(context.groups),
      group_(groups_.all),
      ledger_(context.buffers.ledger()),
      device_(context.plan.params.front().tensor.device()),
      rule_(*update.rule()),
      weight_decay_(update.weight_decay()),
      lr_factors_(context.plan.params.size(), 1.0),
      scaled_(is_scaled(context.plan)),
      bytes_((context.plan.params.size() + 7) / 8 * 8 + sizeof(RankStep)) {
  const memory::OwnerScope owner(ledger_);
  const memory::CategoryScope scope(MemoryCategory::buffers);
  const std::size_t params = plan_.params.size();
  input_.resize(sizeof(cuda::StepInput) + bytes_);
  const cuda::StepInput first;
  std::memcpy(input_.data(), &first, sizeof(first));
  device_input_ = memory(input_.size());
  const auto number = [&](std::size_t at, at::ScalarType type) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(type));
    return device_input_.narrow(0, static_cast<std::int64_t>(at), size).view(type).squeeze(0);
  };
  factor32_ = number(offsetof(cuda::StepInput, factor32), at::kFloat);
  factor64_ = number(offsetof(cuda::StepInput, factor), at::kDouble);
  sums_ = memory(cuda::sums_bytes(bytes_));
  rows_ = memory(cuda::sums_bytes(bytes_) * static_cast<std::size_t>(group_.size()));
  parts_ = memory(sizeof(cuda::StepSums) * static_cast<std::size_t>(options_.axes.group.size()));
  part_steps_ = memory(sizeof(RankStep) * static_cast<std::size_t>(options_.axes.group.size()));
  result_ = memory(sizeof(cuda::StepResult));
  steps_ = memory(sizeof(cuda::ParamStep) * params);
  cuda::StepState state;
  if (scaled_) state.loss_scale = cuda::kFirstLossScale;
  state_ = on_device(&state, sizeof(state));
  loss_scale_ = state_.narrow(0, offsetof(cuda::StepState, loss_scale), sizeof(double))
                    .view(at::kDouble)
                    .squeeze(0);
  updates_ = at::zeros({static_cast<std::int64_t>(params)}, at::device(device_).dtype(at::kLong));
  if (plan_.expert_groups && !is_staged()) expect_equal_counts(group_, params);
  make_tables(update, reducer, options_.seed);
  const MatrixRule* const rule = update.matrix_rule();
  if (rule == nullptr) return;
  matrix_weight_decay_ = rule->weight_decay;
  for (std::size_t i = 0; i < params; ++i) {
    if (!rule->by_matrix[i]) lr_factors_[i] = rule->elementwise_lr;
  }
  const auto any = std::find(rule->by_matrix.begin(), rule->by_matrix.end(), true);
  if (any == rule->by_matrix.end()) return;
  matrices_ = std::make_unique<MatricesOnDevice>(context, update, reducer, *rule);
}

bool StepOnDevice::capturing() const { return nn::gpu::recording(sums_); }
nn::gpu::StreamOf StepOnDevice::stream() const { return nn::gpu::StreamOf(sums_); }

at::Tensor StepOnDevice::memory(std::size_t bytes) const {
  return at::zeros({static_cast<std::int64_t>(bytes)}, at::device(device_).dtype(at::kByte));
}

at::Tensor StepOnDevice::on_device(const void* data, std::size_t bytes) const {
  // from_blob takes a pointer to non-const; the memory is only read.
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte)
      .to(device_);
}

void StepOnDevice::make_tables(const Update& update, const Reducer& reducer, std::uint64_t seed) {
  for (const Param& p : plan_.params) {
    sent_infos_.push_back({p.policy.lr_scale, p.policy.decay ? 1 : 0, stream_of(p.name)});
  }
  infos_ = on_device(sent_infos_.data(), sent_infos_.size() * sizeof(cuda::ParamInfo));

  // [Note: same norm] Pieces are cut within the elements that a rank owns, which are the same at
  // every stage.
  std::vector<cuda::SquarePiece> squares;
  auto owners = std::make_shared<SquareOwners>();
  for (const Param& p : plan_.params) owners->names.push_back(p.name);
  update.each_counted(reducer, [&](int param, const at::Tensor& grad) {
    const auto* from = static_cast<const std::byte*>(grad.const_data_ptr());
    for (std::int64_t at = 0; at < grad.numel(); at += cuda::kSquarePiece) {
      const auto count = std::min<std::int64_t>(grad.numel() - at, cuda::kSquarePiece);
      squares.push_back({from + at * grad.element_size(), static_cast<std::uint32_t>(count),
                         *gpu_type(grad.scalar_type())});
      owners->params.push_back(param);
    }
  });
  square_owners_ = std::move(owners);
  square_count_ = squares.size();
  squares_ = on_device(squares.data(), squares.size() * sizeof(cuda::SquarePiece));
  partials_ = memory(std::max<std::size_t>(1, squares.size()) * sizeof(double));

  const MatrixRule* const matrix_rule = update.matrix_rule();
  std::vector<std::vector<cuda::UpdatePiece>> pieces(plan_.spaces.size());
  for (std::size_t i = 0; i < plan_.params.size(); ++i) {
    const Param& p = plan_.params[i];
    if (p.bucket < 0 || (matrix_rule != nullptr && matrix_rule->by_matrix[i])) continue;
    const ShardTensors shard = update.shard(static_cast<int>(i), reducer);
    const auto moved = [](const at::Tensor& tensor, std::int64_t at) {
      return tensor.defined() ? tensor.mutable_data_ptr<float>() + at : nullptr;
    };
    for (std::int64_t at = 0; at < shard.param.numel(); at += cuda::kUpdatePiece) {
      cuda::UpdatePiece piece;
      piece.grad = static_cast<const std::byte*>(shard.grad.const_data_ptr()) +
                   at * shard.grad.element_size();
      piece.a = moved(shard.a, at);
      piece.b = moved(shard.b, at);
      piece.master = moved(shard.master, at);
      piece.param =
          static_cast<std::byte*>(shard.param.mutable_data_ptr()) + at * shard.param.element_size();
      piece.begin = static_cast<std::uint64_t>(shard.begin + at);
      piece.count = static_cast<std::uint32_t>(
          std::min<std::int64_t>(shard.param.numel() - at, cuda::kUpdatePiece));
      piece.index = static_cast<std::uint32_t>(i);
      pieces[static_cast<std::size_t>(p.space)].push_back(piece);
    }
  }
  for (std::size_t s = 0; s < pieces.size(); ++s) {
    if (pieces[s].empty()) continue;
    const Space& space = plan_.spaces[s];
    SpaceTable table;
    table.types = {*gpu_type(space.dtype), *gpu_type(space.grad_dtype), space.master, seed};
    table.pieces = on_device(pieces[s].data(), pieces[s].size() * sizeof(cuda::UpdatePiece));
    table.count = pieces[s].size();
    spaces_.push_back(std::move(table));
  }
}

// Copies the input to the device if it changed. Torch's allocator does not reuse the pinned memory
// before the copy has completed.
void StepOnDevice::send() {
  if (has_sent_ && sent_ == input_) return;
  const at::Tensor host = pinned_bytes(input_.size());
  std::memcpy(host.mutable_data_ptr(), input_.data(), input_.size());
  device_input_.copy_(host, /*non_blocking=*/true);
  sent_ = input_;
  has_sent_ = true;
}

void StepOnDevice::set_used(const std::vector<bool>& used) {
  for (std::size_t i = 0; i < used.size(); ++i) {
    input_[sizeof(cuda::StepInput) + i] = used[i] ? 1 : 0;
  }
}

// Writes the settings to the host's copy of the input, and changed learning rate scales to the
// device. A captured graph reads both from the device.
void StepOnDevice::set_settings(const StepSettings& settings, const RankStep& own) {
  cuda::StepInput input;
  std::memcpy(&input, input_.data(), sizeof(input));
  input.lr = settings.lr;
  input.clip_norm = settings.clip_norm;
  input.weight_decay = settings.weight_decay.value_or(weight_decay_);
  input.matrix_weight_decay = settings.weight_decay.value_or(matrix_weight_decay_);
  std::memcpy(input_.data(), &input, sizeof(input));
  std::memcpy(input_.data() + input_.size() - sizeof(own), &own, sizeof(own));
  bool same = true;
  for (std::size_t i = 0; i < sent_infos_.size(); ++i) {
    const double scale = settings.lr_scales[i] * lr_factors_[i];
    same = same && sent_infos_[i].lr_scale == scale;
    sent_infos_[i].lr_scale = scale;
  }
  if (same) return;
  const std::size_t bytes = sent_infos_.size() * sizeof(cuda::ParamInfo);
  const at::Tensor host = pinned_bytes(bytes);
  std::memcpy(host.mutable_data_ptr(), sent_infos_.data(), bytes);
  infos_.copy_(host, /*non_blocking=*/true);
}

at::Tensor StepOnDevice::factor(double value, at::ScalarType type) {
  const auto single = static_cast<float>(value);
  std::memcpy(input_.data() + offsetof(cuda::StepInput, factor), &value, sizeof(value));
  std::memcpy(input_.data() + offsetof(cuda::StepInput, factor32), &single, sizeof(single));
  if (!capturing()) send();
  return type == at::kDouble ? factor64_ : factor32_;
}

at::Tensor StepOnDevice::loss_scale() const { return scaled_ ? loss_scale_ : at::Tensor(); }

void StepOnDevice::decide(const at::Tensor& loss, const std::vector<bool>& used,
                          const StepSettings& settings, const RankStep& own, Stopwatch& waiting) {
  if (capturing()) {
    captured_ = used;
  } else {
    set_used(used);
    set_settings(settings, own);
    send();
  }
  const auto* const bytes = data_of<std::uint8_t>(device_input_) + sizeof(cuda::StepInput);
  cuda::sum_of_squares(data_of<cuda::SquarePiece>(squares_), square_count_,
                       data_of<double>(partials_), data_of<double>(loss), bytes, bytes_,
                       data_of<void>(sums_), stream());
  exchange(waiting);
  cuda::Decision what;
  what.input = data_of<cuda::StepInput>(device_input_);
  what.sums = data_of<void>(sums_);
  what.params = plan_.params.size();
  what.infos = data_of<cuda::ParamInfo>(infos_);
  what.scaled = scaled_;
  what.state = data_of<cuda::StepState>(state_);
  what.updates = data_of<std::int64_t>(updates_);
  what.steps = data_of<cuda::ParamStep>(steps_);
  what.result = data_of<cuda::StepResult>(result_);
  cuda::decide(rule_, what, stream());
  if (matrices_) matrices_->decide(what);
}

// Returns true if sums are exchanged through host memory.
bool StepOnDevice::is_staged() const {
  const auto on_host = [](const comm::Group& group) {
    return group.size() > 1 && !group.on_device();
  };
  return on_host(group_) || on_host(options_.axes.group);
}

// Same sums as sum_over_ranks() and sum_over_model(). Squares are added in rank order, which
// differs from theirs with replicas, so norms may differ in the last bits.
void StepOnDevice::exchange(Stopwatch& waiting) {
  if (is_staged()) return exchange_on_host(waiting);
  const comm::Group& parts = options_.axes.group;
  const auto gather = [&](const comm::Group& group, const at::Tensor& all, const at::Tensor& mine,
                          const char* label) {
    const comm::Work work =
        group.all_gather(all.view(at::kDouble), mine.view(at::kDouble), control_call(label));
    waiting.time([&] { work.wait(); });
  };
  if (group_.size() > 1) {
    gather(group_, rows_, sums_, "norm, loss and used parameters");
    cuda::add_sums(data_of<void>(rows_), group_.size(), bytes_, options_.axes.counts_loss,
                   data_of<void>(sums_), stream());
  } else if (!options_.axes.counts_loss) {
    cuda::add_sums(data_of<void>(sums_), 1, bytes_, false, data_of<void>(sums_), stream());
  }
  if (parts.size() > 1) {
    gather(parts, parts_, sums_.narrow(0, 0, sizeof(cuda::StepSums)),
           "norm and loss of the parts of the model");
    const auto size = static_cast<std::int64_t>(sizeof(RankStep));
    gather(parts, part_steps_, device_input_.narrow(0, device_input_.numel() - size, size),
           "settings of the parts of the model");
    cuda::add_sums(data_of<void>(parts_), parts.size(), 0, true, data_of<void>(sums_), stream());
  }
}

void StepOnDevice::exchange_on_host(Stopwatch& waiting) {
  const at::Tensor host = sums_.cpu();
  auto* const header = data_of<cuda::StepSums>(host);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(header + 1);
  StepSums mine;
  mine.squares = header->squares;
  mine.loss = header->loss;
  for (std::size_t i = 0; i < plan_.params.size(); ++i) mine.used.push_back(bytes[i] != 0);
  std::memcpy(static_cast<void*>(&mine.own), input_.data() + input_.size() - sizeof(mine.own),
              sizeof(mine.own));
  const StepSums all = sum_and_compare(plan_, groups_, options_.axes, mine, waiting);
  if (!group_.simulated() && !any_has_work(all.ranks)) throw NoBackward();
  header->squares = all.squares;
  header->loss = all.loss;
  for (std::size_t i = 0; i < plan_.params.size(); ++i) bytes[i] = all.used[i] ? 1 : 0;
  sums_.copy_(host);
}

void StepOnDevice::update() {
  for (const SpaceTable& space : spaces_) {
    cuda::update(rule_, space.types, data_of<cuda::UpdatePiece>(space.pieces), space.count,
                 data_of<cuda::ParamStep>(steps_), stream());
  }
  if (matrices_) matrices_->update();
}

PendingStep StepOnDevice::result() { return capturing() ? PendingStep() : replayed(); }

PendingStep StepOnDevice::replayed() {
  const bool stops = options_.on_non_finite == OnNonFinite::stop;
  // Staged rows are empty: exchange_on_host() has compared the ranks.
  const auto steps_of = [&](const comm::Group& group, const at::Tensor& rows) {
    const bool compares = group.size() > 1 && !is_staged() && !group.simulated();
    return compares ? RankSteps(group, rows) : RankSteps();
  };
  return PendingStep(std::make_shared<PendingResult>(*this, stops, steps_of(group_, rows_),
                                                     steps_of(options_.axes.group, part_steps_)));
}

void StepOnDevice::prepare(double factor, const StepSettings& settings, const RankStep& own) {
  set_used(captured_);
  this->factor(factor, at::kFloat);
  set_settings(settings, own);
  send();
}

std::string StepOnDevice::capture_problem() const {
  std::vector<comm::Group> groups = {group_, options_.axes.group};
  for (const ModelAxes::Tie& tie : options_.axes.ties) groups.push_back(tie.group);
  for (const comm::Group& group : groups) {
    if (group.size() == 1 || group.on_device()) continue;
    return str("ranks exchange through host memory (backend ", group.backend(), ")");
  }
  return "";
}

StepOnDevice::Counts StepOnDevice::counts() const {
  cuda::StepState state;
  std::memcpy(&state, state_.cpu().const_data_ptr(), sizeof(state));
  const at::Tensor updates = updates_.cpu();
  const auto* const begin = updates.const_data_ptr<std::int64_t>();
  return {state.steps, state.loss_scale, state.good_steps, {begin, begin + updates.numel()}};
}

void StepOnDevice::set_counts(const Counts& counts) {
  cuda::StepState state;
  state.steps = counts.steps;
  if (scaled_) {
    state.loss_scale = counts.loss_scale > 0 ? counts.loss_scale : cuda::kFirstLossScale;
    state.good_steps = counts.good_steps;
  }
  state_.copy_(on_device(&state, sizeof(state)));
  updates_.copy_(on_device(counts.updates.data(), counts.updates.size() * sizeof(std::int64_t))
                     .view(at::kLong));
}

}  // namespace tessera::zero
