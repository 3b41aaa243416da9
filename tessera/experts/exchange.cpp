#include "tessera/experts/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

namespace tessera::experts {
namespace {

// Sends the next in_rows[r] rows to rank r, and returns out_rows[r] rows from each.
at::Tensor exchange_rows(const comm::Group& group, const at::Tensor& in,
                         const std::vector<std::int64_t>& in_rows,
                         const std::vector<std::int64_t>& out_rows, const std::string& label) {
  std::vector<std::int64_t> sizes = in.sizes().vec();
  sizes[0] = std::accumulate(out_rows.begin(), out_rows.end(), std::int64_t{0});
  const at::Tensor out = at::empty(sizes, in.options());
  comm::Call call;
  call.label = label;
  std::vector<comm::Work> works;
  std::int64_t from = 0, to = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const at::Tensor sent = in.narrow(0, from, in_rows[r]);
    const at::Tensor received = out.narrow(0, to, out_rows[r]);
    from += in_rows[r];
    to += out_rows[r];
    if (rank == group.rank()) {
      received.copy_(sent);
      continue;
    }
    if (sent.numel() > 0) works.push_back(group.send(sent, rank, call));
    if (received.numel() > 0) works.push_back(group.recv(received, rank, call));
  }
  for (const comm::Work& work : works) work.wait();
  return out;
}

// Returns counts with the same sum as if experts were used evenly, as plans assume.
at::Tensor even_counts(const at::Tensor& counts) {
  const auto rows = counts.sum().item<std::int64_t>(), experts = counts.numel();
  at::Tensor even = at::empty({experts}, at::kLong);
  for (std::int64_t i = 0; i < experts; ++i) {
    even.mutable_data_ptr<std::int64_t>()[i] = rows / experts + (i < rows % experts ? 1 : 0);
  }
  return even;
}

}  // namespace

ExpertRange experts_of(std::int64_t count, int ranks, int rank) {
  return {rank * count / ranks, (rank + 1) * count / ranks};
}

Exchange::Exchange(comm::Group group, const at::Tensor& counts, const std::string& label)
    : group_(std::move(group)) {
  const int ranks = group_.size();
  const std::int64_t most = (counts.numel() + ranks - 1) / ranks;
  const at::Tensor host = group_.simulated() ? even_counts(counts) : counts.cpu();
  counts_ = at::zeros({2, ranks, most}, at::kLong);
  for (int rank = 0; rank < ranks; ++rank) {
    const ExpertRange range = experts_of(counts.numel(), ranks, rank);
    counts_.select(0, 0)
        .select(0, rank)
        .narrow(0, 0, range.count())
        .copy_(host.narrow(0, range.first, range.count()));
  }
  if (group_.simulated()) {  // all ranks send what this one does
    counts_.select(0, 1).copy_(counts_.select(0, 0).select(0, group_.rank()));
    *this = Exchange(group_, counts_);
    return;
  }
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label + " counts";
  const at::Tensor sent = counts_.select(0, 0).to(counts.device());
  const at::Tensor received = at::empty(sent.sizes(), sent.options());
  group_.all_to_all(received, sent, call).wait();
  counts_.select(0, 1).copy_(received);
  *this = Exchange(group_, counts_);
}

Exchange::Exchange(comm::Group group, at::Tensor counts)
    : group_(std::move(group)), counts_(std::move(counts)) {
  const std::int64_t ranks = counts_.size(1), most = counts_.size(2);
  const auto* data = counts_.const_data_ptr<std::int64_t>();
  for (std::int64_t rank = 0; rank < 2 * ranks; ++rank) {
    auto& list = rank < ranks ? sent_ : received_;
    list.push_back(std::accumulate(data + rank * most, data + (rank + 1) * most, std::int64_t{0}));
  }
}

at::Tensor Exchange::there(const at::Tensor& rows, const std::string& label) const {
  return exchange_rows(group_, rows, sent_, received_, label);
}

at::Tensor Exchange::back(const at::Tensor& rows, const std::string& label) const {
  return exchange_rows(group_, rows, received_, sent_, label);
}

std::int64_t Exchange::sent() const {
  return std::accumulate(sent_.begin(), sent_.end(), std::int64_t{0});
}

at::Tensor Exchange::rows_of_experts(std::int64_t count) const {
  return counts_.select(0, 1).sum(0).narrow(0, 0, count);
}

at::Tensor Exchange::source() const {
  const std::int64_t ranks = counts_.size(1), most = counts_.size(2);
  const auto* data = counts_.const_data_ptr<std::int64_t>() + ranks * most;
  at::Tensor result =
      at::empty({std::accumulate(received_.begin(), received_.end(), std::int64_t{0})}, at::kInt);
  auto* to = result.mutable_data_ptr<std::int32_t>();
  for (std::int64_t expert = 0; expert < most; ++expert) {
    std::int64_t first = 0;  // of the rank
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto* const here = data + rank * most;
      const std::int64_t begin = std::accumulate(here, here + expert, first);
      for (std::int64_t i = 0; i < here[expert]; ++i) *to++ = static_cast<std::int32_t>(begin + i);
      first = std::accumulate(here, here + most, first);
    }
  }
  return result;
}

}  // namespace tessera::experts
