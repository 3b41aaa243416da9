#include "tessera/comm/mpi/transport.h"

#include <cstring>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

// The most that any rank puts behind a record; every rank computes the same.
std::size_t payload_bytes(const Collective& call, int ranks) {
  const bool shards =
      call.op == Op::all_gather || call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  if (call.op == Op::barrier) return 0;
  return (shards ? shard_stride(call.count, ranks) : call.count) * size_of(call.dtype);
}

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<Runtime> runtime, std::shared_ptr<Liveness> liveness,
                           std::shared_ptr<TrafficMeter> meter, int rank, int ranks, int first_tag)
    : runtime_(std::move(runtime)),
      liveness_(std::move(liveness)),
      meter_(std::move(meter)),
      rank_(rank),
      ranks_(ranks),
      endpoint_(runtime_, liveness_, first_tag),
      headers_(std::make_shared<HeaderBuffers>()),
      headers_out_(static_cast<std::size_t>(ranks)),
      headers_in_(static_cast<std::size_t>(ranks)) {
  headers_->out.resize(static_cast<std::size_t>(ranks));
  headers_->in.assign(static_cast<std::size_t>(ranks),
                      std::vector<std::byte>(sizeof(Record) + kSmallBytes));
}

bool MpiTransport::quick(const Collective& call) const {
  return payload_bytes(call, ranks_) <= kSmallBytes;
}

std::span<const std::byte> MpiTransport::outgoing(const Collective& call, int to) const {
  const std::size_t size = size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.in);
  const Shard theirs = shard_of(call.count, ranks_, to);
  switch (call.op) {
    case Op::all_reduce: return {in, call.bytes()};
    case Op::reduce: return {in, to == call.peer ? call.bytes() : 0};
    case Op::broadcast: return {in, rank_ == call.peer ? call.bytes() : 0};
    case Op::reduce_scatter:
    case Op::all_to_all: return {in + theirs.begin * size, theirs.size * size};
    case Op::all_gather: return {in, shard_of(call.count, ranks_, rank_).size * size};
    default: return {};
  }
}

void MpiTransport::post(const Collective& call) {
  try {
    liveness_->check_failure([&] { return describe(call); });
  } catch (...) {
    endpoint_.abandon_mpi();
    throw;
  }
  ++sequence_;
  const Record record = make_record(call);
  for (int r = 0; r < ranks_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const auto data = quick(call) ? outgoing(call, r) : std::span<const std::byte>{};
    std::vector<std::byte>& out = headers_->out[i];
    out.resize(sizeof(record) + data.size());
    std::memcpy(out.data(), &record, sizeof(record));
    if (!data.empty()) std::memcpy(out.data() + sizeof(record), data.data(), data.size());
    if (r == rank_) continue;
    std::vector<std::byte>& in = headers_->in[i];
    headers_in_[i] = endpoint_.receive(in.data(), in.size(), r, Tag::header, headers_);
    headers_out_[i] = endpoint_.send(out.data(), out.size(), r, Tag::header, headers_);
  }
}

bool MpiTransport::finish(const Collective& call, bool may_give_up) {
  if (may_give_up) {
    for (const TransferPtr& header : headers_in_) {
      if (header && !header->done()) return false;
    }
  }
  try {
    const auto now = [&] { return doing(call); };
    for (int r = 0; r < ranks_; ++r)
      endpoint_.await(headers_in_[static_cast<std::size_t>(r)], r, now);
    for (int r = 0; r < ranks_; ++r)
      endpoint_.await(headers_out_[static_cast<std::size_t>(r)], r, now);
  } catch (...) {
    endpoint_.abandon_mpi();
    throw;
  }
  // All ranks find the same, so the group stays in step whatever it is.
  compare_calls(
      ranks_, [this](int r) -> const Record& { return record(r); }, sequence_, liveness_->group());
  if (quick(call)) {
    small(call);
    return true;
  }
  try {
    large(call);
  } catch (...) {
    endpoint_.abandon_mpi();
    throw;
  }
  return true;
}

const Record& MpiTransport::record(int rank) const {
  const auto& from = rank == rank_ ? headers_->out : headers_->in;
  return *reinterpret_cast<const Record*>(from[static_cast<std::size_t>(rank)].data());
}

const std::byte* MpiTransport::payload(int rank) const {
  const auto& from = rank == rank_ ? headers_->out : headers_->in;
  return from[static_cast<std::size_t>(rank)].data() + sizeof(Record);
}

// The header messages brought each rank what it needs of the others.
void MpiTransport::small(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const Shard own = shard_of(call.count, ranks_, rank_);
  auto* out = static_cast<std::byte*>(call.out);
  std::vector<const void*> sources;
  for (int r = 0; r < ranks_; ++r) sources.push_back(payload(r));
  switch (call.op) {
    case Op::barrier: break;
    case Op::all_reduce: reduce_into(call, sources, out, call.count); break;
    case Op::reduce:
      if (rank_ == call.peer) reduce_into(call, sources, out, call.count);
      break;
    case Op::reduce_scatter: reduce_into(call, sources, out, own.size); break;
    case Op::all_gather:
      for (int r = 0; r < ranks_; ++r) {
        const Shard theirs = shard_of(call.count, ranks_, r);
        copy(out + theirs.begin * size, payload(r), theirs.size * size);
      }
      break;
    case Op::all_to_all:
      for (int r = 0; r < ranks_; ++r) {
        copy(out + static_cast<std::size_t>(r) * own.size * size, payload(r), own.size * size);
      }
      break;
    case Op::broadcast: copy(out, payload(call.peer), call.bytes()); break;
    case Op::send:
    case Op::recv: throw Error("send and recv do not go through the collective transport");
  }
}

std::string MpiTransport::doing(const Collective& call) const {
  return str("#", sequence_, " ", describe(call));
}

void MpiTransport::reduce_into(const Collective& call, const std::vector<const void*>& sources,
                               void* to, std::size_t count) {
  if (count == 0) return;
  const bool average = call.reduce == ReduceOp::avg;
  void* destinations[] = {to};
  reduce({call.dtype, call.dtype, call.reduce, average ? ranks_ : 1}, sources, destinations, count);
  meter_->copied(count * size_of(call.dtype));
}

void MpiTransport::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  copy_bytes(to, from, bytes);
  meter_->copied(bytes);
}

}  // namespace tessera::comm::mpi
