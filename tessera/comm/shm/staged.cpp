// Collectives on buffers in private memory: pieces are copied through the control blocks.

#include "tessera/comm/pieces.h"
#include "tessera/comm/shm/transport.h"

namespace tessera::comm::shm {

namespace {

// Returns the elements per shard of a piece, in whole cache lines, so that all shards fit a stage.
std::size_t stage_quantum(const Collective& call, int shards) {
  const std::size_t size = size_of(call.dtype), line = 64 / size;
  return kStageBytes / static_cast<std::size_t>(shards) / size / line * line;
}

}  // namespace

// [Note: pieces] Every collective has a few steps per piece. Step s of piece p reads data that the
// peers wrote in step s-1 of piece p, and step 0 of piece p+2 overwrites data that they read in the
// last step of piece p. Step 0 of the next piece is run early, so that in the middle of a transfer
// no rank waits for a step that has just begun. All ranks run the steps in the same order, so one
// number per rank, its count of completed steps, is enough to synchronize.
void ShmTransport::run_pieces(const Collective& call, std::size_t pieces,
                              const std::vector<Step>& steps) {
  const std::size_t last = steps.size() - 1;
  const auto order = [&](std::size_t step, std::size_t piece) {
    const std::size_t count = step > 0 ? 2 + piece * steps.size() + step
                                       : (piece == 0 ? 1 : 2 + (piece - 1) * steps.size());
    return phase_ + static_cast<std::uint32_t>(count);
  };
  const auto take = [&](std::size_t step, std::size_t piece) {
    if (step > 0) await_phase(call, order(step - 1, piece));
    if (step == 0 && piece >= 2) await_phase(call, order(last, piece - 2));
    steps[step](piece);
    control_.block(rank_).phase.raise(order(step, piece));
  };
  take(0, 0);
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    if (piece + 1 < pieces) take(0, piece + 1);
    for (std::size_t step = 1; step <= last; ++step) take(step, piece);
  }
  phase_ = order(last, pieces - 1);
}

void ShmTransport::staged(const Collective& call) {
  switch (call.op) {
    case Op::all_reduce:
    case Op::reduce_scatter: return staged_reduction(call);
    case Op::all_gather: return staged_gather(call);
    case Op::all_to_all: return staged_exchange(call, CountMatrix::of_shards(call.count, ranks_));
    default: return staged_rooted(call);
  }
}

// all_reduce and reduce_scatter: passes the peers their shards, reduces this rank's own and, for
// all_reduce, copies the results of all ranks.
void ShmTransport::staged_reduction(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const int shards = ranks_ / call.copies, mine = rank_ % shards;  // [Note: copies]
  const Pieces cut(call.count, shards, stage_quantum(call, shards));
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const auto offset = [&](int s, std::size_t piece) { return cut.offset(s, piece) * size; };
  const auto in_stage = [&](int s) { return static_cast<std::size_t>(s) * cut.quantum * size; };

  std::vector<Step> steps;
  steps.push_back([&](std::size_t piece) {
    std::byte* stage = control_.block(rank_).stage[piece % 2];
    for (int s = 0; s < shards; ++s) {
      if (s == mine && call.copies == 1) continue;
      copy(stage + in_stage(s), in + offset(s, piece), cut.length(s, piece) * size);
    }
  });
  steps.push_back([&](std::size_t piece) {
    std::vector<const void*> sources;
    for (int r = 0; r < ranks_; ++r) {
      sources.push_back(r == rank_ ? in + offset(mine, piece)
                                   : control_.block(r).stage[piece % 2] + in_stage(mine));
    }
    std::vector<void*> to;
    if (call.op == Op::all_reduce) {
      to = {out + offset(rank_, piece), control_.block(rank_).result[piece % 2]};
    } else {
      to = {out + piece * cut.quantum * size};
    }
    reduce_into(call, sources, to, cut.length(mine, piece));
  });
  if (call.op == Op::all_reduce) {
    steps.push_back([&](std::size_t piece) {
      for (int r = 0; r < ranks_; ++r) {
        if (r == rank_) continue;
        copy(out + offset(r, piece), control_.block(r).result[piece % 2],
             cut.length(r, piece) * size);
      }
    });
  }
  run_pieces(call, cut.count, steps);
}

void ShmTransport::staged_gather(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const Pieces cut(call.count, ranks_, stage_quantum(call, 1));
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  run_pieces(call, cut.count,
             {[&](std::size_t piece) {
                copy(control_.block(rank_).stage[piece % 2], in + piece * cut.quantum * size,
                     cut.length(rank_, piece) * size);
              },
              [&](std::size_t piece) {
                for (int r = 0; r < ranks_; ++r) {
                  const std::byte* from = r == rank_ ? in + piece * cut.quantum * size
                                                     : control_.block(r).stage[piece % 2];
                  copy(out + cut.offset(r, piece) * size, from, cut.length(r, piece) * size);
                }
              }});
}

// broadcast: all ranks copy the root's pieces. reduce: the root reduces the pieces of all ranks.
void ShmTransport::staged_rooted(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const Pieces cut(call.count, 1, stage_quantum(call, 1));
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const bool root = rank_ == call.peer;
  const bool broadcast = call.op == Op::broadcast;
  const auto begin = [&](std::size_t piece) { return piece * cut.quantum * size; };
  run_pieces(
      call, cut.count,
      {[&](std::size_t piece) {
         if (root != broadcast) return;
         copy(control_.block(rank_).stage[piece % 2], in + begin(piece), cut.width(piece) * size);
       },
       [&](std::size_t piece) {
         if (broadcast) {
           copy(out + begin(piece),
                root ? in + begin(piece) : control_.block(call.peer).stage[piece % 2],
                cut.width(piece) * size);
         } else if (root) {
           std::vector<const void*> sources;
           for (int r = 0; r < ranks_; ++r) {
             sources.push_back(r == rank_ ? in + begin(piece) : control_.block(r).stage[piece % 2]);
           }
           reduce_into(call, sources, {out + begin(piece)}, cut.width(piece));
         }
       }});
}

}  // namespace tessera::comm::shm
