// Communication of a decoder: [Note: decoding on ranks], [Note: decoding along cp].

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/models/decoder.h"
#include "tessera/tensor_parallel/collectives.h"

namespace tessera::models {
namespace {

comm::Call labeled(const char* label) {
  comm::Call call;
  call.label = label;
  return call;
}

// Returns [ranks, …] of the same tensor of each rank.
at::Tensor gathered_over(const comm::Group& group, const at::Tensor& own, const char* label) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty(sizes, own.options());
  group.all_gather(all, own.contiguous(), labeled(label)).wait();
  return all;
}

}  // namespace

at::Tensor Decoder::summed(const at::Tensor& partial) const {
  if (options_.tp.size() == 1) return partial;
  return tensor_parallel::all_reduce_(options_.tp, partial.contiguous(), "decode");
}

at::Tensor Decoder::gathered(const at::Tensor& own) const {
  if (options_.tp.size() == 1) return own;
  // Padding follows the last token.
  return gathered_over(options_.tp, own, "logits")
      .transpose(0, 1)
      .reshape({own.size(0), options_.tp.size() * own.size(1)})
      .narrow(1, 0, shape_.vocab)
      .contiguous();
}

// Returns [rows, heads · d]: the attention of the current rows, whose keys and values enter the
// cache.
at::Tensor Decoder::attend(const at::Tensor& qkv, const KeyValueCache& cache,
                           const ScoreOptions& options) {
  ops_->remember(qkv, cache);
  const comm::Group& cp = options_.cp;
  if (cp.size() == 1) return ops_->attend(qkv, cache, options);
  const std::int64_t heads = part_.heads;
  const at::Tensor queries = qkv.narrow(1, 0, heads * part_.head_dim());
  if (cut_rows_.empty()) {
    const at::Tensor part = ops_->attend_part(current_, queries, cache, options);
    return ops_->merge(gathered_over(cp, part, "results of attention"), heads);
  }
  const at::Tensor all = gathered_over(cp, queries, "queries").flatten(0, 1);
  const at::Tensor parts = ops_->attend_part(cut_rows_, all, cache, options).contiguous();
  const at::Tensor own = at::empty_like(parts);
  cp.all_to_all(own, parts, labeled("results of attention")).wait();
  return ops_->merge(own.view({cp.size(), -1, own.size(1)}), heads);
}

// Runs consecutive rows of one text, each on the rank that holds it. If `wanted`, returns the
// residual stream of all of them on every rank.
at::Tensor Decoder::hidden_of_text(std::span<const Row> rows, bool wanted) {
  const comm::Group& cp = options_.cp;
  const std::size_t ranks = as_size(cp.size()), each = (rows.size() + ranks - 1) / ranks;
  cut_rows_.assign(ranks * each, rows.back());
  std::vector<std::size_t> filled(ranks, 0);
  std::vector<std::int64_t> places;  // of the rows in cut_rows_
  for (const Row& row : rows) {
    const std::size_t rank = as_size(row.position) % ranks;
    const std::size_t place = rank * each + filled[rank]++;
    cut_rows_[place] = row;
    places.push_back(static_cast<std::int64_t>(place));
  }
  const at::Tensor own =
      hidden(std::span<const Row>(cut_rows_).subspan(as_size(cp.rank()) * each, each));
  cut_rows_.clear();
  if (!wanted) return {};
  return gathered_over(cp, own, "rows of a text")
      .flatten(0, 1)
      .index_select(0, at::tensor(places, at::kLong).to(own.device()));
}

// The first rank sends along cp, and then each rank that received along tp.
void Decoder::broadcast(const at::Tensor& x) const {
  comm::Call call = labeled("what to decode");
  call.traffic = comm::Traffic::control;
  if (options_.tp.rank() == 0) options_.cp.broadcast(x, 0, call).wait();
  options_.tp.broadcast(x, 0, call).wait();
}

// Sends two messages. The first has a fixed length, and contains the length of the second.
void Decoder::tell(Order order) const {
  if (options_.tp.size() == 1 && options_.cp.size() == 1) return;
  if (!first()) {
    const comm::Group& group = options_.tp.rank() != 0 ? options_.tp : options_.cp;
    throw UsageError(str("rank ", group.rank(),
                         " of a decoder cannot be asked for logits. Call follow() on it, and ask "
                         "the first rank."));
  }
  const std::vector<std::int64_t> head = {static_cast<std::int64_t>(order),
                                          static_cast<std::int64_t>(rows_.size()),
                                          static_cast<std::int64_t>(ends_.size())};
  broadcast(at::tensor(head, at::kLong));
  if (order == Order::end) return;
  std::vector<std::int64_t> body;
  for (const Row& row : rows_) body.insert(body.end(), {row.slot, row.position, row.token});
  body.insert(body.end(), ends_.begin(), ends_.end());
  broadcast(at::tensor(body, at::kLong));
}

void Decoder::follow() {
  if (first()) {
    throw UsageError("follow() cannot be called on the first rank of a decoder");
  }
  const at::Tensor head = at::empty({3}, at::kLong);
  for (;;) {
    broadcast(head);
    const std::int64_t* const about = head.data_ptr<std::int64_t>();
    const auto order = static_cast<Order>(about[0]);
    if (order == Order::end) return;
    const at::Tensor body = at::empty({3 * about[1] + about[2]}, at::kLong);
    broadcast(body);
    const std::int64_t* from = body.data_ptr<std::int64_t>();
    rows_.clear();
    for (std::int64_t i = 0; i < about[1]; ++i, from += 3) {
      rows_.push_back({from[0], from[1], from[2]});
    }
    ends_.assign(from, from + about[2]);
    run(order);
  }
}

void Decoder::finish() { tell(Order::end); }

}  // namespace tessera::models
