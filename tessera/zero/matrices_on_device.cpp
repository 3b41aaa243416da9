#include "tessera/zero/matrices_on_device.h"

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/zero/optimizers.h"

namespace tessera::zero {
namespace {

namespace cuda = kernels::cuda;

constexpr std::array<std::int64_t, 2> kMatrixDims = {1, 2};

template <class T>
at::Tensor copied_to(c10::Device device, const std::vector<T>& values) {
  // from_blob takes a pointer to non-const; the memory is only read.
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  return at::from_blob(const_cast<T*>(values.data()), {bytes}, at::kByte).to(device);
}

// StepOnDevice::problem() rejects other types.
DType type_of_elements(at::ScalarType type) {
  return type == at::kFloat ? DType::f32 : type == at::kBFloat16 ? DType::bf16 : DType::f16;
}

template <class T>
T* typed(const at::Tensor& bytes) {
  return static_cast<T*>(bytes.mutable_data_ptr());
}

// Returns `count` matrices as [count, rows, columns], with rows ≤ columns. `flat`: [count,
// elements], in the memory order of the parameter; each matrix begins a row.
at::Tensor as_wide_matrices(const Param& param, const at::Tensor& flat) {
  const at::Tensor matrices =
      flat.as_strided({flat.size(0), param.sizes[0], param.sizes[1]},
                      {flat.stride(0), param.strides[0], param.strides[1]}, flat.storage_offset());
  return param.sizes[0] > param.sizes[1] ? matrices.transpose(1, 2) : matrices;
}

// Appends the pieces of one shard.
template <class MakePiece>
void add_pieces(std::vector<cuda::UpdatePiece>& to, int param, std::int64_t count,
                const MakePiece& make) {
  for (std::int64_t at = 0; at < count; at += cuda::kUpdatePiece) {
    cuda::UpdatePiece piece = make(at);
    piece.count =
        static_cast<std::uint32_t>(std::min<std::int64_t>(count - at, cuda::kUpdatePiece));
    piece.index = static_cast<std::uint32_t>(param);
    to.push_back(piece);
  }
}

}  // namespace

MatricesOnDevice::MatricesOnDevice(const UpdateContext& context, const Update& update,
                                   const Reducer& reducer, const MatrixRule& rule)
    : plan_(context.plan),
      ledger_(context.buffers.ledger()),
      group_(context.groups.shard),
      sharded_(sharding_of_stage(context.options.stage).optimizer && group_.size() > 1),
      momentum_(rule.momentum) {
  if (plan_.expert_groups) {
    throw UsageError(
        "Muon on a GPU: expert-parallel ranks have different matrices, which it cannot exchange "
        "yet. Use --ep 1 or AdamW");
  }
  std::vector<int> order;
  std::vector<double> scales(plan_.params.size());
  for (std::size_t i = 0; i < plan_.params.size(); ++i) {
    if (!rule.by_matrix[i]) continue;
    const Param& p = plan_.params[i];
    order.push_back(static_cast<int>(i));
    scales[i] = muon_scale(p.sizes[0], p.sizes[1]);
  }
  const auto param = [&](int index) -> const Param& {
    return plan_.params[static_cast<std::size_t>(index)];
  };
  // The order of MatrixExchange: rank r owns the r-th matrix of each round.
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return param(a).numel > param(b).numel; });
  const auto ranks = static_cast<std::size_t>(group_.size());
  std::vector<MatrixRound> rounds;
  for (std::size_t first = 0; first < order.size(); first += ranks) {
    const Param& largest = param(order[first]);
    rounds.push_back({largest.numel, sharded_ ? largest.shard : largest.numel});
  }
  const std::vector<MatrixBatch> batches = matrix_batches(rounds, group_.size());
  std::int64_t elements = 0;
  for (const MatrixBatch& batch : batches) {
    elements = std::max(elements, batch.row * group_.size());
  }
  const c10::Device device = plan_.params.front().tensor.device();
  const auto fp32 = at::device(device).dtype(at::kFloat);
  // Zeros, because blocks end with padding that is sent too.
  out_ = at::zeros({elements}, fp32);
  if (group_.size() > 1) in_ = at::zeros({elements}, fp32);
  scales_ = copied_to(device, scales);
  const auto steps = static_cast<std::int64_t>(plan_.params.size() * sizeof(cuda::ParamStep));
  momentum_steps_ = at::zeros({steps}, at::device(device).dtype(at::kByte));
  descent_steps_ = at::zeros({steps}, at::device(device).dtype(at::kByte));
  for (const MatrixBatch& batch : batches) {
    add_batch(batch, order, update, reducer, context.options.seed);
  }
}

void MatricesOnDevice::add_batch(const MatrixBatch& rounds, const std::vector<int>& order,
                                 const Update& update, const Reducer& reducer, std::uint64_t seed) {
  Batch batch;
  batch.row = rounds.row;
  const auto ranks = static_cast<std::size_t>(group_.size());
  const auto own_rank = static_cast<std::size_t>(group_.rank());
  // Directions are written to out_; results are read from where the exchange puts them.
  auto* const directions = out_.mutable_data_ptr<float>();
  const auto* const results = ranks > 1 ? in_.const_data_ptr<float>() : directions;
  std::map<std::size_t, std::vector<cuda::UpdatePiece>> momentum, descent;  // by space
  std::int64_t begin = 0;                                                   // in a row
  for (std::size_t round = rounds.begin; round < rounds.end; ++round) {
    const std::size_t first = round * ranks;
    const Param& largest = plan_.params[static_cast<std::size_t>(order[first])];
    const std::int64_t block = sharded_ ? largest.shard : largest.numel;
    for (std::size_t rank = 0; rank < ranks && first + rank < order.size(); ++rank) {
      const int index = order[first + rank];
      const Param& p = plan_.params[static_cast<std::size_t>(index)];
      const ShardTensors shard = update.shard(index, reducer);
      const std::int64_t place = static_cast<std::int64_t>(rank) * batch.row + begin;
      const auto space = static_cast<std::size_t>(p.space);
      const std::int64_t count = shard.param.numel();
      add_pieces(momentum[space], index, count, [&](std::int64_t at) {
        cuda::UpdatePiece piece;
        piece.grad = static_cast<const std::byte*>(shard.grad.const_data_ptr()) +
                     at * shard.grad.element_size();
        piece.a = shard.a.mutable_data_ptr<float>() + at;
        piece.param = directions + place + at;
        return piece;
      });
      add_pieces(descent[space], index, count, [&](std::int64_t at) {
        cuda::UpdatePiece piece;
        piece.grad = results + place + at;
        if (shard.master.defined()) piece.master = shard.master.mutable_data_ptr<float>() + at;
        piece.param = static_cast<std::byte*>(shard.param.mutable_data_ptr()) +
                      at * shard.param.element_size();
        piece.begin = static_cast<std::uint64_t>(shard.begin + at);
        return piece;
      });
      if (rank != own_rank) continue;
      const std::int64_t rows = std::min(p.sizes[0], p.sizes[1]);
      const std::int64_t columns = std::max(p.sizes[0], p.sizes[1]);
      auto stack = std::find_if(batch.stacks.begin(), batch.stacks.end(), [&](const Stack& each) {
        return each.rows == rows && each.columns == columns;
      });
      if (stack == batch.stacks.end()) {
        stack = batch.stacks.insert(stack, Stack{rows, columns, {}});
      }
      MatrixRun* const last = stack->runs.empty() ? nullptr : &stack->runs.back();
      const bool alike = last != nullptr && last->param->sizes == p.sizes &&
                         last->param->strides == p.strides && last->param->shard == p.shard;
      const std::int64_t step = alike ? begin - (last->begin + last->step * (last->count - 1)) : 0;
      if (alike && (last->count == 1 || last->step == step)) {
        last->step = step;
        ++last->count;
      } else {
        stack->runs.push_back({&p, begin, block, 1});
      }
    }
    begin += block;
  }
  const auto tables = [&](const auto& pieces, bool to_directions) {
    std::vector<Table> all;
    for (const auto& [index, each] : pieces) {
      if (each.empty()) continue;
      const Space& space = plan_.spaces[index];
      Table& table = all.emplace_back();
      table.types =
          to_directions
              ? cuda::UpdateTypes{DType::f32, type_of_elements(space.grad_dtype), false, 0}
              : cuda::UpdateTypes{type_of_elements(space.dtype), DType::f32, space.master, seed};
      table.pieces = copied_to(out_.device(), each);
      table.count = each.size();
    }
    return all;
  };
  batch.momentum = tables(momentum, true);
  batch.descent = tables(descent, false);
  batches_.push_back(std::move(batch));
}

void MatricesOnDevice::decide(const cuda::Decision& decided) {
  cuda::MatrixDecision what;
  what.input = decided.input;
  what.result = decided.result;
  what.params = decided.params;
  what.infos = decided.infos;
  what.decided = decided.steps;
  what.scales = typed<double>(scales_);
  what.momentum = typed<cuda::ParamStep>(momentum_steps_);
  what.descent = typed<cuda::ParamStep>(descent_steps_);
  cuda::decide_matrices(momentum_, what, stream());
}

at::Tensor MatricesOnDevice::rows_of(const at::Tensor& buffer, const Batch& batch) const {
  return buffer.narrow(0, 0, batch.row * group_.size()).view({group_.size(), batch.row});
}

at::Tensor MatricesOnDevice::gathered(const Batch& batch, const MatrixRun& run) const {
  const at::Tensor rows = rows_of(sharded_ ? in_ : out_, batch);
  const std::int64_t offset = rows.storage_offset() + run.begin;
  if (!sharded_) {
    return rows.as_strided({run.count, run.param->numel}, {run.step, 1},
                           offset + group_.rank() * batch.row);
  }
  const std::int64_t shard = run.param->shard;
  return rows.as_strided({run.count, group_.size(), shard}, {run.step, batch.row, 1}, offset)
      .contiguous()
      .view({run.count, group_.size() * shard});
}

void MatricesOnDevice::orthogonalize(const Batch& batch, const Stack& stack) const {
  std::int64_t count = 0;
  for (const MatrixRun& run : stack.runs) count += run.count;
  at::Tensor x = at::empty({count, stack.rows, stack.columns}, out_.options().dtype(at::kBFloat16));
  std::vector<at::Tensor> flat;
  std::int64_t at = 0;
  for (const MatrixRun& run : stack.runs) {
    flat.push_back(gathered(batch, run));
    const at::Tensor from = as_wide_matrices(*run.param, flat.back());
    at::Tensor to = x.narrow(0, at, run.count);
    const at::Tensor norms = at::linalg_vector_norm(from, 2, kMatrixDims, /*keepdim=*/true);
    at::div_out(to, from, norms + 1e-7);
    at += run.count;
  }
  x = newton_schulz(std::move(x));
  at = 0;
  for (std::size_t i = 0; i < stack.runs.size(); ++i) {
    const MatrixRun& run = stack.runs[i];
    as_wide_matrices(*run.param, flat[i]).copy_(x.narrow(0, at, run.count));
    at += run.count;
    if (!sharded_) continue;
    const at::Tensor rows = rows_of(out_, batch);
    rows.as_strided({run.count, group_.size(), run.param->shard}, {run.step, batch.row, 1},
                    rows.storage_offset() + run.begin)
        .copy_(flat[i].view({run.count, group_.size(), run.param->shard}));
  }
}

void MatricesOnDevice::update() {
  const at::NoGradGuard no_grad;
  const memory::OwnerScope owner(ledger_);
  const auto launch = [this](const rules::Rule& rule, const std::vector<Table>& tables,
                             const at::Tensor& steps) {
    for (const Table& table : tables) {
      cuda::update(rule, table.types, typed<cuda::UpdatePiece>(table.pieces), table.count,
                   typed<cuda::ParamStep>(steps), stream());
    }
  };
  for (const Batch& batch : batches_) {
    launch(momentum_, batch.momentum, momentum_steps_);
    const at::Tensor out = rows_of(out_, batch);
    const at::Tensor in = in_.defined() ? rows_of(in_, batch) : at::Tensor();
    comm::Call call;
    call.label = "matrices (momentum)";
    if (sharded_) group_.all_to_all(in.view(-1), out.view(-1), call).wait();
    for (const Stack& stack : batch.stacks) orthogonalize(batch, stack);
    call.label = "matrices (update)";
    if (sharded_) {
      group_.all_to_all(in.view(-1), out.view(-1), call).wait();
    } else if (group_.size() > 1) {
      group_.all_gather(in.view(-1), out.select(0, group_.rank()), call).wait();
    }
    launch(rules::Descent{}, batch.descent, descent_steps_);
  }
}

}  // namespace tessera::zero
