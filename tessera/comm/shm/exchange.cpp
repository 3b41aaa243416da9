// all_to_all: with unequal counts, and of shards in private memory.

#include <algorithm>
#include <cstring>

#include "tessera/comm/shm/transport.h"

namespace tessera::comm::shm {
namespace {

// The elements that a rank sends to the others, as one sequence that is cut into pieces of `room`
// elements: those for the next rank first. So that in a piece, ranks with similar counts send to
// different ranks.
struct ExchangeStream {
  const CountMatrix& counts;
  const std::size_t room;

  // Returns the number of pieces of the rank that sends most.
  std::size_t pieces() const {
    std::size_t most = 0;
    for (int r = 0; r < counts.ranks(); ++r) {
      most = std::max(most, counts.in_count(r) - counts.sent(r, r));
    }
    return (most + room - 1) / room;
  }

  // Calls visit(to, first, at, count) for each rank with elements in a piece of rank `from`:
  // `count` elements of the part for rank `to`, from element `first` of that part on, are at
  // element `at` of the piece.
  template <typename Visit>
  void visit_piece(int from, std::size_t piece, const Visit& visit) const {
    const std::size_t begin = piece * room, end = begin + room;
    std::size_t position = 0;
    for (int i = 1; i < counts.ranks(); ++i) {
      const int to = (from + i) % counts.ranks();
      const std::size_t count = counts.sent(from, to);
      const std::size_t first = std::max(position, begin), last = std::min(position + count, end);
      if (first < last) visit(to, first - position, first - begin, last - first);
      position += count;
    }
  }
};

}  // namespace

// Returns the bytes of input that fit next to the counts in a slot.
std::size_t ShmTransport::exchange_room() const {
  const std::size_t row = CountMatrix::row_bytes(ranks_);
  return row < kSmallBytes ? kSmallBytes - row : 0;
}

void ShmTransport::post_exchange(const Collective& call, Slot& mine) const {
  CountMatrix::write_row(*call.counts, mine.payload);
  if (!is_small(call)) {
    mine.header.in = memories_->address(call.in, call.bytes());
  } else if (call.count > 0) {
    std::memcpy(mine.payload + CountMatrix::row_bytes(ranks_), call.in, call.bytes());
  }
}

// Throws on every rank if the counts of two ranks differ.
CountMatrix ShmTransport::exchanged_counts(const Collective& call) const {
  CountMatrix counts(ranks_);
  for (int r = 0; r < ranks_; ++r) counts.read_row(r, slot(r).payload);
  counts.check(call.label, sequence_, liveness_->group());
  return counts;
}

// Input that fits a slot is read there, other input in symmetric memory. Returns false without any
// effect if peers have to be waited for and `may_give_up` is set.
bool ShmTransport::exchange(const Collective& call, bool may_give_up) {
  const CountMatrix counts = exchanged_counts(call);
  const std::size_t size = size_of(call.dtype);
  const auto in_slot = [&](int r) { return counts.in_count(r) * size <= exchange_room(); };
  bool all_small = true, all_direct = true;
  for (int r = 0; r < ranks_; ++r) {
    all_small = all_small && in_slot(r);
    all_direct = all_direct && (in_slot(r) || slot(r).header.in.memory != 0);
  }
  if (!all_small && may_give_up) return false;
  if (!all_direct) {
    staged_exchange(call, counts);
    return true;
  }
  copy_parts(call, counts, [&](int r) {
    return in_slot(r) ? slot(r).payload + CountMatrix::row_bytes(ranks_)
                      : resolve(call, r, &Header::in);
  });
  if (all_small) return true;
  // No rank may write to its input again while a peer still reads it.
  control_.block(rank_).phase.raise(++phase_);
  await_phase(call, phase_);
  return true;
}

void ShmTransport::copy_parts(const Collective& call, const CountMatrix& counts,
                              const std::function<const std::byte*(int rank)>& input_of) {
  const std::size_t size = size_of(call.dtype);
  auto* out = static_cast<std::byte*>(call.out);
  for (int i = 0; i < ranks_; ++i) {
    const int r = (rank_ + i) % ranks_;  // so that ranks do not all read from the same peer
    const std::size_t count = counts.sent(r, rank_);
    if (count == 0) continue;
    copy(out + counts.out_begin(rank_, r) * size, input_of(r) + counts.in_begin(r, rank_) * size,
         count * size);
  }
}

void ShmTransport::staged_exchange(const Collective& call, const CountMatrix& counts) {
  const std::size_t size = size_of(call.dtype);
  const ExchangeStream stream{counts, kStageBytes / size};
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const std::size_t pieces = stream.pieces();
  if (pieces > 0) {
    run_pieces(
        call, pieces,
        {[&](std::size_t piece) {
           std::byte* stage = control_.block(rank_).stage[piece % 2];
           stream.visit_piece(
               rank_, piece, [&](int to, std::size_t first, std::size_t at, std::size_t count) {
                 copy(stage + at * size, in + (counts.in_begin(rank_, to) + first) * size,
                      count * size);
               });
         },
         [&](std::size_t piece) {
           for (int i = 1; i < ranks_; ++i) {
             const int from = (rank_ + i) % ranks_;
             const std::byte* stage = control_.block(from).stage[piece % 2];
             stream.visit_piece(from, piece,
                                [&](int to, std::size_t first, std::size_t at, std::size_t count) {
                                  if (to != rank_) return;
                                  copy(out + (counts.out_begin(rank_, from) + first) * size,
                                       stage + at * size, count * size);
                                });
           }
         }});
  }
  // Last, because no rank waits for it.
  copy(out + counts.out_begin(rank_, rank_) * size, in + counts.in_begin(rank_, rank_) * size,
       counts.sent(rank_, rank_) * size);
}

}  // namespace tessera::comm::shm
