#include "tessera/comm/tcp/transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/count_matrix.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::comm::tcp {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kShort = 16 * 1024;  // largest data that is sent with the call

}  // namespace

void check_size(const Collective& call) {
  if (call.bytes() <= kMaxBytes) return;
  throw UsageError(str(describe(call), " over tcp: ", call.bytes(), " bytes; must be at most ",
                       kMaxBytes, ". Split the buffer."));
}

TcpTransport::Pieces TcpTransport::pieces_for(const Collective& call, int to) const {
  Pieces pieces;
  const auto add = [&](const void* base, std::size_t begin, std::size_t bytes) {
    pieces.emplace_back(static_cast<const char*>(base) + begin, bytes);
  };
  switch (call.op) {
    case Op::reduce:
      if (to == call.peer) add(call.in, 0, call.bytes());
      break;
    case Op::broadcast:
      if (rank_ == call.peer) add(call.in, 0, call.bytes());
      break;
    case Op::reduce_scatter:
    case Op::all_to_all:
      if (call.counts) {
        const std::size_t size = size_of(call.dtype);
        add(call.in, part_begin(call.counts->in, to) * size, nth(call.counts->in, to) * size);
        break;
      }
      for_each_part(call, ranks_, rank_, [&](const Collective& part) {
        const std::size_t size = size_of(part.dtype);
        const Shard theirs = shard_of(part.count, ranks_, to);
        add(part.in, theirs.begin * size, theirs.size * size);
      });
      break;
    case Op::all_gather:
      for_each_part(call, ranks_, rank_, [&](const Collective& part) {
        const Shard own = shard_of(part.count, ranks_, rank_);
        add(part.in, 0, own.size * size_of(part.dtype));
      });
      break;
    case Op::all_reduce:  // its halves are calls of other operations
    case Op::barrier:
    case Op::send:
    case Op::recv: break;
  }
  return pieces;
}

bool TcpTransport::is_short(const Collective& call) const {
  switch (call.op) {
    case Op::barrier: return true;
    case Op::all_reduce:
    case Op::all_gather:
    case Op::broadcast:
      return call.bytes() <= std::min(kShort, kMaxBytes / static_cast<std::size_t>(ranks_));
    default: return false;
  }
}

// Returns the bytes of this rank that all ranks need if the call is short, and otherwise those that
// stay here.
std::string TcpTransport::own_data(const Collective& call) const {
  if (call.op == Op::all_reduce) return {static_cast<const char*>(call.in), call.bytes()};
  std::string bytes;
  for (const std::string_view piece : pieces_for(call, rank_)) bytes += piece;
  return bytes;
}

void TcpTransport::pass_on(int distance) {
  std::string bytes;
  // The receiver has all others.
  const auto count = static_cast<std::size_t>(std::min(distance, ranks_ - distance));
  for (std::size_t i = 0; i < count; ++i) {
    const Letter& letter = gathered_[i];
    const std::uint64_t size = letter.bytes.size();
    bytes.append(reinterpret_cast<const char*>(&letter.record), sizeof(letter.record));
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes += letter.bytes;
  }
  mail_.send((rank_ + distance) % ranks_, gathered_.front().record, {{bytes}});
}

void TcpTransport::take_gathered(int distance, Letter letter) {
  const std::string& bytes = letter.bytes;
  std::size_t at = 0;
  for (int i = 0; i < std::min(distance, ranks_ - distance); ++i) {
    Letter& next = gathered_.emplace_back();
    std::uint64_t size = 0;
    constexpr std::size_t kHead = sizeof(next.record) + sizeof(size);
    if (bytes.size() - at >= kHead) {
      std::memcpy(&next.record, bytes.data() + at, sizeof(next.record));
      std::memcpy(&size, bytes.data() + at + sizeof(next.record), sizeof(size));
      at += kHead;
      next.record.label[sizeof(next.record.label) - 1] = '\0';
      if (size <= bytes.size() - at) {
        next.bytes = bytes.substr(at, size);
        at += size;
        continue;
      }
    }
    throw DataError(str("rank ", rank_, " received ", bytes.size(), " bytes of gathered calls ",
                        "that do not have the form of this version; use the same on all hosts"));
  }
}

void TcpTransport::post(const Collective& call) {
  if (!call.counts) check_size(call);
  ++sequence_;
  gathered_.clear();
  gathered_.push_back({make_record(call), is_short(call) ? own_data(call) : ""});
  if (call.counts) {
    gathered_.front().bytes.resize(CountMatrix::row_bytes(ranks_));
    CountMatrix::write_row(*call.counts, gathered_.front().bytes.data());
  }
  if (ranks_ > 1) pass_on(1);
}

Letter TcpTransport::wait_for(int from, const Collective& call, std::chrono::milliseconds extra) {
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
        },
        extra);
    if (letter) return std::move(*letter);
    mail_.peers().wait_for_notes(seen, 50ms);
  }
}

bool TcpTransport::finish(const Collective& call, bool) {
  // In the first round the next rank after a missing one waits for it directly, and names it when
  // its time is over. A rank that is awaited in a later round may only be waiting itself, so these
  // rounds have twice the time.
  for (int distance = 1; distance < ranks_; distance *= 2) {
    if (distance > 1) pass_on(distance);
    const auto extra = distance > 1 ? liveness_->timeout() : 0ms;
    take_gathered(distance, wait_for((rank_ - distance + ranks_) % ranks_, call, extra));
  }
  const auto letter_of = [&](int r) -> Letter& {
    return gathered_[static_cast<std::size_t>((rank_ - r + ranks_) % ranks_)];
  };
  compare_calls(
      ranks_, [&](int r) -> const Record& { return letter_of(r).record; }, sequence_,
      liveness_->group());
  if (call.counts) check_exchange(call);
  if (is_short(call)) {
    std::vector<std::string_view> from;
    for (int r = 0; r < ranks_; ++r) from.emplace_back(letter_of(r).bytes);
    take_result(call, from);
  } else if (call.op == Op::all_reduce) {
    // Each rank reduces its shard and sends the sum to the others.
    const Shard own = shard_of(call.count, ranks_, rank_);
    const std::size_t size = size_of(call.dtype);
    Collective half = call;
    half.op = Op::reduce_scatter;
    half.out = static_cast<std::byte*>(call.out) + own.begin * size;
    exchange(half, call, {static_cast<const char*>(call.in) + own.begin * size, own.size * size},
             0ms);
    half.op = Op::all_gather;
    half.in = half.out;
    half.out = call.out;
    // A rank that is awaited here may be waiting for the first half of another one.
    exchange(half, call, {static_cast<const char*>(half.in), own.size * size},
             liveness_->timeout());
  } else {
    exchange(call, call, own_data(call), 0ms);
  }
  return true;
}

// Throws on every rank if the counts of two ranks differ, or a rank's input is too large.
void TcpTransport::check_exchange(const Collective& call) const {
  CountMatrix counts(ranks_);
  for (int distance = 0; distance < ranks_; ++distance) {
    const int rank = (rank_ - distance + ranks_) % ranks_;
    const std::string& row = nth(gathered_, distance).bytes;
    if (row.size() != CountMatrix::row_bytes(ranks_)) {
      throw DataError(str("rank ", rank, " sent ", row.size(), " bytes of counts for ",
                          describe(call), "; must be ", CountMatrix::row_bytes(ranks_)));
    }
    counts.read_row(rank, row.data());
  }
  counts.check(call.label, sequence_, liveness_->group());
  for (int rank = 0; rank < ranks_; ++rank) {
    Collective theirs = call;
    theirs.count = counts.in_count(rank);
    check_size(theirs);
  }
}

void TcpTransport::exchange(const Collective& call, const Collective& made, std::string_view own,
                            std::chrono::milliseconds extra) {
  const Record& record = gathered_.front().record;
  for (int step = 1; step < ranks_; ++step) {
    const int to = (rank_ + step) % ranks_;
    mail_.send(to, record, pieces_for(call, to));
  }
  std::vector<Letter> letters(static_cast<std::size_t>(ranks_));
  std::vector<std::string_view> from(letters.size());
  for (int r = 0; r < ranks_; ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (r != rank_) letters[index] = wait_for(r, made, extra);
    from[index] = r == rank_ ? own : letters[index].bytes;
  }
  take_result(call, from);
}

void TcpTransport::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  copy_bytes(to, from, bytes);
  meter_->copied(bytes);
}

void TcpTransport::take_result(const Collective& call, const std::vector<std::string_view>& from) {
  const std::size_t size = size_of(call.dtype);
  auto* out = static_cast<std::byte*>(call.out);
  // Returns bytes of a rank's letter, whose record equals this rank's but whose size may not.
  const auto piece = [&](std::size_t r, std::size_t at, std::size_t bytes) {
    if (at > from[r].size() || bytes > from[r].size() - at) {
      throw DataError(str("rank ", r, " sent ", from[r].size(), " bytes for ", describe(call),
                          "; must be at least ", at + bytes));
    }
    return reinterpret_cast<const std::byte*>(from[r].data()) + at;
  };
  const auto add = [&](std::byte* to, std::size_t at, std::size_t count) {
    if (count == 0) return;
    std::vector<const void*> sources;
    for (std::size_t r = 0; r < from.size(); ++r) sources.push_back(piece(r, at, count * size));
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
    case Op::broadcast:
      return copy(out, piece(static_cast<std::size_t>(call.peer), 0, call.bytes()), call.bytes());
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
          copy(static_cast<std::byte*>(part.out) + theirs.begin * size,
               piece(index, at[index], theirs.size * size), theirs.size * size);
          at[index] += theirs.size * size;
        }
      });
      return;
    }
    case Op::all_to_all: {
      const std::size_t own = shard_of(call.count, ranks_, rank_).size * size;
      std::size_t at = 0;
      for (std::size_t r = 0; r < from.size(); ++r) {
        const std::size_t bytes = call.counts ? call.counts->out[r] * size : own;
        copy(out + at, piece(r, 0, bytes), bytes);
        at += bytes;
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
               {{std::string_view(static_cast<const char*>(call.in), call.bytes())}});
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
  if (letter->bytes.size() != call.bytes()) {
    throw DataError(str("rank ", call.peer, " sent ", letter->bytes.size(), " bytes for ",
                        describe(call), "; must be ", call.bytes()));
  }
  if (call.bytes() > 0) copy_bytes(call.out, letter->bytes.data(), call.bytes());
  meter_->copied(call.bytes());
  message.finished = true;
  return true;
}

void TcpPointToPoint::wait(std::uint64_t seen) { mail_.peers().wait_for_notes(seen, 5ms); }

}  // namespace tessera::comm::tcp
