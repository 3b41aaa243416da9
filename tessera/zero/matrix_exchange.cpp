#include "tessera/zero/matrix_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/core/text.h"

namespace tessera::zero {
namespace {

// Writes a result in the memory order of the parameter.
void write_flat(const Param& param, const at::Tensor& result, const at::Tensor& flat) {
  flat.as_strided(param.sizes, param.strides, flat.storage_offset()).copy_(result);
}

at::Tensor as_matrix(const Param& param, const at::Tensor& flat) {
  return flat.as_strided(param.sizes, param.strides, flat.storage_offset());
}

}  // namespace

MatrixExchange::MatrixExchange(const Plan& plan, const comm::Group& group, bool sharded)
    : plan_(plan), group_(group), sharded_(sharded && group.size() > 1) {}

void MatrixExchange::run(std::vector<int> params, at::TensorOptions options, const Collect& collect,
                         const Compute& compute, const Apply& apply) const {
  const auto param = [&](int index) -> const Param& {
    return plan_.params[static_cast<std::size_t>(index)];
  };
  std::stable_sort(params.begin(), params.end(),
                   [&](int a, int b) { return param(a).numel > param(b).numel; });
  const auto ranks = static_cast<std::size_t>(group_.size());
  for (std::size_t at = 0; at < params.size(); at += ranks) {
    const auto begin = params.begin() + static_cast<std::ptrdiff_t>(at);
    const std::vector<int> some(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(ranks, params.size() - at)));
    Round round;
    for (const int index : some) round.push_back(&param(index));
    if (sharded_) {
      shard_round(round, some, options, collect, compute, apply);
    } else {
      whole_round(round, some, options, collect, compute, apply);
    }
  }
}

void MatrixExchange::whole_round(const Round& round, const std::vector<int>& params,
                                 at::TensorOptions options, const Collect& collect,
                                 const Compute& compute, const Apply& apply) const {
  const auto rank = static_cast<std::size_t>(group_.rank());
  const std::int64_t block = round.front()->numel;  // the largest
  const at::Tensor mine = at::zeros({block}, options);
  for (std::size_t j = 0; j < round.size(); ++j) {
    // Also for matrices that other ranks compute: collect() updates the rule's state.
    const at::Tensor flat = at::empty({round[j]->numel}, options);
    collect(params[j], flat);
    if (j == rank) {
      write_flat(*round[j], compute(params[j], as_matrix(*round[j], flat)),
                 mine.narrow(0, 0, round[j]->numel));
    }
  }
  at::Tensor all = mine;
  if (group_.size() > 1) {
    all = at::empty({block * group_.size()}, options);
    comm::Call call;
    call.label = round.front()->name + " (update)";
    group_.all_gather(all, mine, call).wait();
  }
  for (std::size_t j = 0; j < round.size(); ++j) {
    apply(params[j], all.narrow(0, static_cast<std::int64_t>(j) * block, round[j]->numel));
  }
}

void MatrixExchange::shard_round(const Round& round, const std::vector<int>& params,
                                 at::TensorOptions options, const Collect& collect,
                                 const Compute& compute, const Apply& apply) const {
  const int ranks = group_.size(), rank = group_.rank();
  const std::int64_t block = round.front()->shard;  // the largest
  // Row j is sent to rank j, and received from it.
  const at::Tensor out = at::zeros({ranks, block}, options);
  const at::Tensor in = at::empty({ranks, block}, options);
  const auto held = [&](const at::Tensor& rows, std::size_t j) {
    return rows.select(0, static_cast<std::int64_t>(j))
        .narrow(0, 0, shard_of(*round[j], rank).size);
  };
  for (std::size_t j = 0; j < round.size(); ++j) collect(params[j], held(out, j));
  comm::Call call;
  call.label = round.front()->name + " (momentum)";
  group_.all_to_all(in.view(-1), out.view(-1), call).wait();
  if (const auto j = static_cast<std::size_t>(rank); j < round.size()) {
    const Param& param = *round[j];
    const at::Tensor padded = in.narrow(1, 0, param.shard).contiguous().view(-1);
    const at::Tensor flat = padded.narrow(0, 0, param.numel);
    write_flat(param, compute(params[j], as_matrix(param, flat)), flat);
    out.narrow(1, 0, param.shard).copy_(padded.view({ranks, param.shard}));
  }
  call.label = round.front()->name + " (update)";
  group_.all_to_all(in.view(-1), out.view(-1), call).wait();
  for (std::size_t j = 0; j < round.size(); ++j) apply(params[j], held(in, j));
}

}  // namespace tessera::zero
