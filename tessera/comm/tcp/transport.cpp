#include "tessera/comm/tcp/transport.h"

#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::tcp {

using namespace std::chrono_literals;

void check_size(const Collective& call) {
  if (call.bytes() <= kMostBytes) return;
  throw UsageError(str(describe(call), " over tcp: ", call.bytes(), " bytes in host memory; up to ",
                       kMostBytes,
                       " travel between hosts without MPI. Start the ranks with mpirun ",
                       "(backend mpi or two-level), or use GPUs and backend nccl"));
}

TcpTransport::Pieces TcpTransport::pieces_for(const Collective& call, int to) const {
  const auto* in = static_cast<const std::byte*>(call.in);
  Pieces pieces;
  switch (call.op) {
    case Op::all_reduce: pieces.emplace_back(in, call.bytes()); break;
    case Op::reduce:
      if (to == call.peer) pieces.emplace_back(in, call.bytes());
      break;
    case Op::broadcast:
      if (rank_ == call.peer) pieces.emplace_back(in, call.bytes());
      break;
    case Op::reduce_scatter:
    case Op::all_to_all:
      for_each_part(call, ranks_, rank_, [&](const Collective& part) {
        const std::size_t size = size_of(part.dtype);
        const Shard theirs = shard_of(part.count, ranks_, to);
        pieces.emplace_back(static_cast<const std::byte*>(part.in) + theirs.begin * size,
                            theirs.size * size);
      });
      break;
    case Op::all_gather:
      for_each_part(call, ranks_, rank_, [&](const Collective& part) {
        const Shard own = shard_of(part.count, ranks_, rank_);
        pieces.emplace_back(static_cast<const std::byte*>(part.in), own.size * size_of(part.dtype));
      });
      break;
    case Op::barrier:
    case Op::send:
    case Op::recv: break;
  }
  return pieces;
}

void TcpTransport::post(const Collective& call) {
  check_size(call);
  ++sequence_;
  const Record record = make_record(call);
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    std::string bytes;
    for (const auto& [begin, size] : pieces_for(call, r)) {
      bytes.append(reinterpret_cast<const char*>(begin), size);
    }
    mail_.send(r, record, bytes);
  }
}

Letter TcpTransport::wait_for(int from, const Collective& call) {
  const auto since = Liveness::Clock::now();
  std::optional<Letter> letter;
  for (;;) {
    const std::uint64_t seen = mail_.peers().notes_heard();
    letter = mail_.take(from);
    if (letter) return std::move(*letter);
    liveness_->check(
        from, since, [&] { return str("#", sequence_, " ", describe(call)); },
        [&] {
          letter = mail_.take(from);
          return letter.has_value();
        });
    if (letter) return std::move(*letter);
    mail_.peers().wait_for_notes(seen, 50ms);
  }
}

bool TcpTransport::finish(const Collective& call, bool) {
  std::vector<Letter> letters(static_cast<std::size_t>(ranks_));
  Letter& own = letters[static_cast<std::size_t>(rank_)];
  own.record = make_record(call);
  for (const auto& [begin, size] : pieces_for(call, rank_)) {
    own.bytes.append(reinterpret_cast<const char*>(begin), size);
  }
  for (int r = 0; r < ranks_; ++r) {
    if (r != rank_) letters[static_cast<std::size_t>(r)] = wait_for(r, call);
  }
  compare_calls(
      ranks_, [&](int r) -> const Record& { return letters[static_cast<std::size_t>(r)].record; },
      sequence_, liveness_->group());
  std::vector<const std::byte*> from;
  for (const Letter& letter : letters) {
    from.push_back(reinterpret_cast<const std::byte*>(letter.bytes.data()));
  }
  take_result(call, from);
  return true;
}

void TcpTransport::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  copy_bytes(to, from, bytes);
  meter_->copied(bytes);
}

// The letters are the same in size on every rank that has agreed on the call.
void TcpTransport::take_result(const Collective& call, const std::vector<const std::byte*>& from) {
  const std::size_t size = size_of(call.dtype);
  auto* out = static_cast<std::byte*>(call.out);
  const auto add = [&](std::byte* to, std::size_t at, std::size_t count) {
    if (count == 0) return;
    std::vector<const void*> sources;
    for (const std::byte* each : from) sources.push_back(each + at);
    void* const destinations[] = {to};
    reduce({call.dtype, call.dtype, call.reduce, call.reduce == ReduceOp::avg ? ranks_ : 1},
           sources, destinations, count);
    meter_->copied(count * size);
  };
  switch (call.op) {
    case Op::all_reduce: return add(out, 0, call.count);
    case Op::reduce:
      if (rank_ == call.peer) add(out, 0, call.count);
      return;
    case Op::broadcast: return copy(out, from[static_cast<std::size_t>(call.peer)], call.bytes());
    case Op::reduce_scatter: {
      std::size_t at = 0;
      for_each_part(call, ranks_, rank_, [&](const Collective& part) {
        const Shard own = shard_of(part.count, ranks_, rank_);
        add(static_cast<std::byte*>(part.out), at, own.size);
        at += own.size * size;
      });
      return;
    }
    case Op::all_gather: {
      std::vector<std::size_t> at(from.size());
      for_each_part(call, ranks_, rank_, [&](const Collective& part) {
        for (int r = 0; r < ranks_; ++r) {
          const auto index = static_cast<std::size_t>(r);
          const Shard theirs = shard_of(part.count, ranks_, r);
          copy(static_cast<std::byte*>(part.out) + theirs.begin * size, from[index] + at[index],
               theirs.size * size);
          at[index] += theirs.size * size;
        }
      });
      return;
    }
    case Op::all_to_all: {
      const std::size_t bytes = shard_of(call.count, ranks_, rank_).size * size;
      for (int r = 0; r < ranks_; ++r) {
        const auto index = static_cast<std::size_t>(r);
        copy(out + index * bytes, from[index], bytes);
      }
      return;
    }
    case Op::barrier:
    case Op::send:
    case Op::recv: return;
  }
}

std::shared_ptr<PointToPointMessage> TcpPointToPoint::make_message(Collective call) const {
  check_size(call);
  return std::make_shared<PointToPointMessage>(std::move(call));
}

bool TcpPointToPoint::move(PointToPointMessage& message) {
  const Collective& call = message.call;
  if (call.op == Op::send) {
    liveness_->check_failure([&] { return describe(call); });
    mail_.send(call.peer, make_record(call),
               std::string(static_cast<const char*>(call.in), call.bytes()));
    message.finished = true;
    return true;
  }
  std::optional<Letter> letter;
  const auto arrived = [&] {
    letter = mail_.take(call.peer);
    return letter.has_value();
  };
  if (!arrived()) {
    liveness_->check(
        call.peer, message.since, [&] { return describe(call); }, arrived);
    if (!letter) return false;
  }
  const std::string problem =
      compare_message(letter->record, call.peer, make_record(call), rank_, liveness_->group());
  if (!problem.empty()) liveness_->fail(Failure::Kind::usage, -1, problem);
  if (call.bytes() > 0) copy_bytes(call.out, letter->bytes.data(), call.bytes());
  meter_->copied(call.bytes());
  message.finished = true;
  return true;
}

void TcpPointToPoint::wait(std::uint64_t seen) { mail_.peers().wait_for_notes(seen, 5ms); }

}  // namespace tessera::comm::tcp
