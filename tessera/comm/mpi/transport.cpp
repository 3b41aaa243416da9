#include "tessera/comm/mpi/transport.h"

#include <cstring>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

// The most that any rank puts behind a header; every rank computes the same.
std::size_t payload_bytes(const Collective& call, int ranks) {
  const bool shards =
      call.op == Op::all_gather || call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  if (call.op == Op::barrier) return 0;
  return (shards ? shard_stride(call.count, ranks) : call.count) * size_of(call.dtype);
}

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watch,
                           std::shared_ptr<TrafficMeter> meter, int rank, int ranks, int first_tag)
    : runtime_(std::move(runtime)),
      watch_(std::move(watch)),
      meter_(std::move(meter)),
      rank_(rank),
      ranks_(ranks),
      courier_(runtime_, watch_, first_tag),
      mail_(std::make_shared<Mail>()),
      letters_out_(static_cast<std::size_t>(ranks)),
      letters_in_(static_cast<std::size_t>(ranks)) {
  mail_->out.resize(static_cast<std::size_t>(ranks));
  mail_->in.assign(static_cast<std::size_t>(ranks),
                   std::vector<std::byte>(sizeof(Record) + kSmallBytes));
}

bool MpiTransport::quick(const Collective& call) const {
  return payload_bytes(call, ranks_) <= kSmallBytes;
}

MpiTransport::Part MpiTransport::payload(const Collective& call, int to) const {
  const std::size_t size = size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.in);
  const Shard theirs = shard_of(call.count, ranks_, to);
  switch (call.op) {
    case Op::all_reduce: return {in, call.bytes()};
    case Op::reduce: return to == call.peer ? Part{in, call.bytes()} : Part{};
    case Op::broadcast: return rank_ == call.peer ? Part{in, call.bytes()} : Part{};
    case Op::reduce_scatter:
    case Op::all_to_all: return {in + theirs.begin * size, theirs.size * size};
    case Op::all_gather: return {in, shard_of(call.count, ranks_, rank_).size * size};
    default: return {};
  }
}

void MpiTransport::post(const Collective& call) {
  try {
    watch_->check_failure([&] { return describe(call); });
  } catch (...) {
    courier_.give_up();
    throw;
  }
  ++sequence_;
  const Record record = make_record(call);
  for (int r = 0; r < ranks_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const Part part = quick(call) ? payload(call, r) : Part{};
    std::vector<std::byte>& out = mail_->out[i];
    out.resize(sizeof(record) + part.bytes);
    std::memcpy(out.data(), &record, sizeof(record));
    if (part.bytes > 0) std::memcpy(out.data() + sizeof(record), part.data, part.bytes);
    if (r == rank_) continue;
    std::vector<std::byte>& in = mail_->in[i];
    letters_in_[i] = courier_.receive(in.data(), in.size(), r, Channel::header, mail_);
    letters_out_[i] = courier_.send(out.data(), out.size(), r, Channel::header, mail_);
  }
}

bool MpiTransport::finish(const Collective& call, bool may_give_up) {
  if (may_give_up) {
    for (const Ticket& letter : letters_in_) {
      if (letter && !letter->done()) return false;
    }
  }
  try {
    const auto now = [&] { return doing(call); };
    for (int r = 0; r < ranks_; ++r)
      courier_.await(letters_in_[static_cast<std::size_t>(r)], r, now);
    for (int r = 0; r < ranks_; ++r)
      courier_.await(letters_out_[static_cast<std::size_t>(r)], r, now);
  } catch (...) {
    courier_.give_up();
    throw;
  }
  // All ranks find the same, so the group stays in step whatever it is.
  compare_calls(
      ranks_, [this](int r) -> const Record& { return record(r); }, sequence_, watch_->group());
  if (quick(call)) {
    small(call);
    return true;
  }
  try {
    large(call);
  } catch (...) {
    courier_.give_up();
    throw;
  }
  return true;
}

const Record& MpiTransport::record(int rank) const {
  const auto& from = rank == rank_ ? mail_->out : mail_->in;
  return *reinterpret_cast<const Record*>(from[static_cast<std::size_t>(rank)].data());
}

const std::byte* MpiTransport::letter(int rank) const {
  const auto& from = rank == rank_ ? mail_->out : mail_->in;
  return from[static_cast<std::size_t>(rank)].data() + sizeof(Record);
}

// The letters brought each rank what it needs of the others.
void MpiTransport::small(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const Shard own = shard_of(call.count, ranks_, rank_);
  auto* out = static_cast<std::byte*>(call.out);
  std::vector<const void*> sources;
  for (int r = 0; r < ranks_; ++r) sources.push_back(letter(r));
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
        copy(out + theirs.begin * size, letter(r), theirs.size * size);
      }
      break;
    case Op::all_to_all:
      for (int r = 0; r < ranks_; ++r) {
        copy(out + static_cast<std::size_t>(r) * own.size * size, letter(r), own.size * size);
      }
      break;
    case Op::broadcast: copy(out, letter(call.peer), call.bytes()); break;
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
