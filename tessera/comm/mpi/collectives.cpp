// Collectives on buffers that are too large to travel with a header.

#include <algorithm>
#include <array>

#include "tessera/comm/mpi/transport.h"
#include "tessera/comm/pieces.h"
#include "tessera/core/errors.h"

namespace tessera::comm::mpi {
namespace {

// Of a reduction: the memory for pieces of all ranks, two per rank, stays below kStageBytes.
constexpr std::size_t kPieceBytes = 1 << 20;
constexpr std::size_t kStageBytes = 64 << 20;
constexpr std::size_t kLeastPieceBytes = 16 << 10;
// Of a broadcast.
constexpr std::size_t kChainBytes = 512 << 10;
constexpr std::size_t kChainPieces = 8;  // on their way to one rank

}  // namespace

void MpiTransport::large(const Collective& call) {
  switch (call.op) {
    case Op::all_reduce:
    case Op::reduce_scatter:
    case Op::reduce: return reduction(call);
    case Op::all_gather: return gather(call);
    case Op::all_to_all: return exchange(call);
    case Op::broadcast: return broadcast(call);
    default: throw Error("a call without data has no large form");
  }
}

// [Note: pieces of a reduction] Piece p is `quantum` elements of every shard, and goes through
//   give      our part of shard r goes to rank r, and theirs of our shard comes into the stage;
//   reduce    our shard, in rank order;
//   deliver   the result goes to all (all_reduce) or to the root (reduce), straight into `out`.
// Piece p+1 is given before piece p is reduced, so that data moves while we compute. The stage of
// piece p is free for p+2 once p is reduced. In place, the result of shard r lands where we sent
// our part of it from: only after that was sent.
void MpiTransport::reduction(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const auto n = static_cast<std::size_t>(ranks_);
  const std::size_t piece_bytes = std::clamp(kStageBytes / (2 * n), kLeastPieceBytes, kPieceBytes);
  const Pieces cut(call.count, ranks_, piece_bytes / size);
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const bool root = rank_ == call.peer;
  const auto now = [&] { return doing(call); };
  const auto offset = [&](int r, std::size_t piece) { return cut.offset(r, piece) * size; };
  // Behind the pieces of the others: the result, where it has no place in `out`.
  stage_.resize(2 * n * cut.quantum * size);
  const auto stage = [&](int r, std::size_t piece) {
    return stage_.data() + ((piece % 2) * n + static_cast<std::size_t>(r)) * cut.quantum * size;
  };

  struct Piece {
    std::vector<TransferPtr> given, taken, sent, got;  // by rank
  };
  std::array<Piece, 2> window;
  for (Piece& w : window) {
    for (auto* transfers : {&w.given, &w.taken, &w.sent, &w.got}) transfers->resize(n);
  }
  const auto finish = [&](std::vector<TransferPtr>& transfers) {
    for (int r = 0; r < ranks_; ++r) {
      endpoint_.await(transfers[static_cast<std::size_t>(r)], r, now);
      transfers[static_cast<std::size_t>(r)].reset();
    }
  };
  const auto give = [&](std::size_t p) {
    Piece& w = window[p % 2];
    for (int r = 0; r < ranks_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r == rank_) continue;
      const std::size_t mine = cut.length(rank_, p) * size, theirs = cut.length(r, p) * size;
      if (mine > 0) w.taken[i] = endpoint_.receive(stage(r, p), mine, r, Tag::data);
      if (theirs > 0) w.given[i] = endpoint_.send(in + offset(r, p), theirs, r, Tag::data);
    }
  };
  const auto reduce_piece = [&](std::size_t p) {
    finish(window[p % 2].taken);
    std::vector<const void*> sources;
    for (int r = 0; r < ranks_; ++r) {
      sources.push_back(r == rank_ ? in + offset(rank_, p) : stage(r, p));
    }
    std::byte* to = stage(rank_, p);
    if (call.op == Op::reduce_scatter) to = out + p * cut.quantum * size;
    if (call.op == Op::all_reduce || (call.op == Op::reduce && root)) to = out + offset(rank_, p);
    reduce_into(call, sources, to, cut.length(rank_, p));
    return to;
  };
  const auto deliver = [&](std::size_t p, const std::byte* result) {
    Piece& w = window[p % 2];
    const bool wanted = call.op == Op::all_reduce || root;
    for (int r = 0; r < ranks_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const bool to_them = call.op == Op::all_reduce || r == call.peer;
      const std::size_t mine = cut.length(rank_, p) * size, theirs = cut.length(r, p) * size;
      if (r == rank_) continue;
      if (wanted && theirs > 0)
        w.got[i] = endpoint_.receive(out + offset(r, p), theirs, r, Tag::result);
      if (to_them && mine > 0) w.sent[i] = endpoint_.send(result, mine, r, Tag::result);
    }
  };

  give(0);
  for (std::size_t p = 0; p < cut.count; ++p) {
    if (p > 0) {
      finish(window[(p + 1) % 2].sent);
      finish(window[(p + 1) % 2].got);
    }
    if (p + 1 < cut.count) give(p + 1);
    const std::byte* result = reduce_piece(p);
    finish(window[p % 2].given);
    if (call.op != Op::reduce_scatter) deliver(p, result);
  }
  finish(window[(cut.count + 1) % 2].sent);
  finish(window[(cut.count + 1) % 2].got);
}

void MpiTransport::gather(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  auto* out = static_cast<std::byte*>(call.out);
  const Shard own = shard_of(call.count, ranks_, rank_);
  std::vector<PiecewiseTransfer> transfers;
  // Beginning with the next rank, so that not all send to the same one first.
  for (int step = 1; step < ranks_; ++step) {
    const int to = (rank_ + step) % ranks_, from = (rank_ - step + ranks_) % ranks_;
    const Shard theirs = shard_of(call.count, ranks_, from);
    transfers.emplace_back(Transfer::Kind::receive, out + theirs.begin * size, theirs.size * size,
                           from, Tag::data);
    transfers.emplace_back(Transfer::Kind::send, call.in, own.size * size, to, Tag::data);
  }
  for (PiecewiseTransfer& transfer : transfers) transfer.advance(endpoint_);
  copy(out + own.begin * size, call.in, own.size * size);
  run(transfers, endpoint_, [&] { return doing(call); });
}

void MpiTransport::exchange(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const Shard own = shard_of(call.count, ranks_, rank_);
  const auto place = [&](int r) { return out + static_cast<std::size_t>(r) * own.size * size; };
  std::vector<PiecewiseTransfer> transfers;
  for (int step = 1; step < ranks_; ++step) {
    const int to = (rank_ + step) % ranks_, from = (rank_ - step + ranks_) % ranks_;
    const Shard theirs = shard_of(call.count, ranks_, to);
    transfers.emplace_back(Transfer::Kind::receive, place(from), own.size * size, from, Tag::data);
    transfers.emplace_back(Transfer::Kind::send, in + theirs.begin * size, theirs.size * size, to,
                           Tag::data);
  }
  for (PiecewiseTransfer& transfer : transfers) transfer.advance(endpoint_);
  copy(place(rank_), in + own.begin * size, own.size * size);
  run(transfers, endpoint_, [&] { return doing(call); });
}

void MpiTransport::broadcast(const Collective& call) {
  const auto now = [&] { return doing(call); };
  const bool root = rank_ == call.peer;
  const int before = (rank_ - 1 + ranks_) % ranks_, next = (rank_ + 1) % ranks_;
  const bool last = next == call.peer;
  const std::size_t bytes = call.bytes();
  const std::size_t pieces = (bytes + kChainBytes - 1) / kChainBytes;
  const auto length = [&](std::size_t p) { return std::min(kChainBytes, bytes - p * kChainBytes); };
  auto* out = static_cast<std::byte*>(call.out);
  const std::byte* from = root ? static_cast<const std::byte*>(call.in) : out;
  std::deque<TransferPtr> coming, going;
  std::size_t asked = 0;
  for (std::size_t p = 0; p < pieces; ++p) {
    if (!root) {
      for (; asked < pieces && coming.size() < kChainPieces; ++asked) {
        coming.push_back(
            endpoint_.receive(out + asked * kChainBytes, length(asked), before, Tag::data));
      }
      endpoint_.await(coming.front(), before, now);
      coming.pop_front();
    }
    if (last) continue;
    if (going.size() == kChainPieces) {
      endpoint_.await(going.front(), next, now);
      going.pop_front();
    }
    going.push_back(endpoint_.send(from + p * kChainBytes, length(p), next, Tag::data));
  }
  if (root) copy(out, call.in, bytes);
  for (const TransferPtr& transfer : going) endpoint_.await(transfer, next, now);
}

}  // namespace tessera::comm::mpi
