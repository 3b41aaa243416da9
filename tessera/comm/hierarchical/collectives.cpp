// Collectives on buffers that are too large to be sent with the headers.

#include <algorithm>

#include "tessera/comm/hierarchical/transport.h"
#include "tessera/core/errors.h"

namespace tessera::comm::hierarchical {
namespace {
constexpr std::size_t kStageBytes = 4 << 20;  // one piece of a rank's whole input
}

// [Note: ticks] Piece p is `quantum` elements of every shard. Each rank has two stage buffers with
// its input of a piece for the other ranks of its host, and two result buffers for pieces of its
// inter-host group's shards. A tick begins with one barrier of the host. Each step of a tick
// handles a different piece, so that the network transfers one piece while the host computes the
// next.
//   all_reduce, at tick t:   pack t | host barrier | partials of t
//                            | between hosts: reduce_scatter t
//                            | finish t-1, between hosts: all_gather t-1 | copy out t-2
// The buffers that a step of tick t writes (stage t, result t-1) were last read by other ranks in
// tick t-1, before they reached the barrier of tick t. Between two calls, the exchange of headers
// is also such a barrier.

void HierarchicalTransport::large(const Collective& call) {
  if (!shared_) shared_ = levels_.local->symmetric(4 * kStageBytes);
  switch (call.op) {
    case Op::all_reduce:
    case Op::reduce_scatter:
    case Op::reduce: return reduction(call);
    case Op::all_gather: return gather(call);
    case Op::all_to_all:
      return exchange(
          call, call.counts ? gather_counts(call) : CountMatrix::of_shards(call.count, ranks()));
    case Op::broadcast: return broadcast(call);
    default: throw Error("this call has no data, so it is never staged in pieces");
  }
}

Pieces HierarchicalTransport::cut(const Collective& call) const {
  return {call.count, ranks(),
          kStageBytes / static_cast<std::size_t>(ranks()) / size_of(call.dtype)};
}

std::byte* HierarchicalTransport::stage(int local, std::size_t piece) const {
  return static_cast<std::byte*>(shared_->part(local)) + (piece % 2) * kStageBytes;
}

std::byte* HierarchicalTransport::result(int local, std::size_t piece) const {
  return static_cast<std::byte*>(shared_->part(local)) + (2 + piece % 2) * kStageBytes;
}

// Copies a piece of the input to the stage, which has the layout [ranks, quantum].
void HierarchicalTransport::pack(const Collective& call, const Pieces& cut, std::size_t piece) {
  const std::size_t size = size_of(call.dtype);
  const auto* in = static_cast<const std::byte*>(call.in);
  for (int r = 0; r < ranks(); ++r) {
    const auto shard = static_cast<std::size_t>(r);
    copy(stage(local(), piece) + shard * cut.quantum * size, in + cut.offset(r, piece) * size,
         cut.length(r, piece) * size);
  }
}

// Copies a piece of the result to the output. Result buffers have the layout [hosts, width]; that
// of local rank l contains the shards of all ranks with local rank l.
void HierarchicalTransport::copy_out(const Collective& call, const Pieces& cut, std::size_t piece) {
  const std::size_t size = size_of(call.dtype);
  auto* out = static_cast<std::byte*>(call.out);
  for (int r = 0; r < ranks(); ++r) {
    const auto h = static_cast<std::size_t>(levels_.layout.host(r));
    copy(out + cut.offset(r, piece) * size,
         result(levels_.layout.local(r), piece) + h * cut.width(piece) * size,
         cut.length(r, piece) * size);
  }
}

// all_reduce, reduce_scatter and reduce. See [Note: host by host] in partial.h. If all inputs are
// in symmetric memory, they are read directly. This is safe in place: between reading a piece of
// the input and writing that piece of the output there is a barrier of the host.
void HierarchicalTransport::reduction(const Collective& call) {
  const Layout& layout = levels_.layout;
  const Partial partial(call.dtype, call.reduce, ranks());
  const std::size_t size = size_of(call.dtype), wide = size_of(partial.type());
  const Pieces c = cut(call);
  const auto hosts = static_cast<std::size_t>(layout.hosts);
  for (auto* buffers : {partials_, combined_}) {
    for (int i = 0; i < 2; ++i) buffers[i].resize(hosts * c.quantum * wide);
  }
  std::vector<const std::byte*> bases;
  const bool direct = direct_sources(call, bases);
  const bool scatter = call.op == Op::reduce_scatter, rooted = call.op == Op::reduce;
  const int root_host = rooted ? layout.host(call.peer) : -1;
  const auto source = [&](int l, int r, std::size_t p) -> const void* {
    const auto shard = static_cast<std::size_t>(r);
    return direct ? bases[static_cast<std::size_t>(l)] + c.offset(r, p) * size
                  : stage(l, p) + shard * c.quantum * size;
  };
  const auto reduce_here = [&](std::size_t p) {
    for (int h = 0; h < layout.hosts; ++h) {
      const int r = layout.rank(h, local());
      const std::size_t count = c.length(r, p);
      std::vector<const void*> values;
      for (int l = 0; l < layout.per_host; ++l) values.push_back(source(l, r, p));
      if (count == 0) continue;
      partial.first(
          values, partials_[p % 2].data() + static_cast<std::size_t>(h) * c.width(p) * wide, count);
      levels_.meter->copied(count * wide);
    }
  };
  const auto cross = [&](std::size_t p) {
    return between_hosts(rooted ? Op::reduce : Op::reduce_scatter, partial.type(),
                         partial.between(), partials_[p % 2].data(), combined_[p % 2].data(),
                         hosts * c.width(p), root_host);
  };
  const auto finish_piece = [&](std::size_t p, int r, std::size_t from, void* to) {
    const std::size_t count = c.length(r, p);
    const void* whole[] = {combined_[p % 2].data() + from * c.width(p) * wide};
    if (count == 0) return;
    partial.last(whole, to, count);
    levels_.meter->copied(count * size);
  };
  const auto round = [&](std::size_t p) {
    const auto own = static_cast<std::size_t>(host());
    if (scatter) {
      auto* out = static_cast<std::byte*>(call.out);
      finish_piece(p, levels_.rank, 0, out + p * c.quantum * size);
    } else if (!rooted) {
      finish_piece(p, levels_.rank, 0, result(local(), p) + own * c.width(p) * size);
    } else if (host() == root_host) {
      for (std::size_t h = 0; h < hosts; ++h) {
        finish_piece(p, layout.rank(static_cast<int>(h), local()), h,
                     result(local(), p) + h * c.width(p) * size);
      }
    }
  };
  const auto spread = [&](std::size_t p) {
    std::byte* to = result(local(), p);
    return between_hosts(Op::all_gather, call.dtype, ReduceOp::sum,
                         to + static_cast<std::size_t>(host()) * c.width(p) * size, to,
                         hosts * c.width(p));
  };

  Work crossing[2], spreading[2];
  const std::size_t ticks = c.count + (scatter ? 1 : 2);
  for (std::size_t t = 0; t < ticks; ++t) {
    if (t < c.count && !direct) pack(call, c, t);
    if (t >= 2) spreading[t % 2].wait();
    host_barrier();
    if (t < c.count) reduce_here(t);
    if (t >= 1 && t <= c.count) {
      crossing[(t - 1) % 2].wait();
      round(t - 1);
      if (!scatter && !rooted) spreading[(t - 1) % 2] = spread(t - 1);
    }
    if (t < c.count) crossing[t % 2] = cross(t);
    if (t >= 2 && !scatter && (!rooted || levels_.rank == call.peer)) copy_out(call, c, t - 2);
  }
}

void HierarchicalTransport::gather(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const Pieces c = cut(call);
  const auto* in = static_cast<const std::byte*>(call.in);
  Work spreading[2];
  for (std::size_t t = 0; t <= c.count; ++t) {
    if (t >= 1) spreading[(t - 1) % 2].wait();
    host_barrier();
    if (t < c.count) {
      std::byte* to = result(local(), t);
      std::byte* own = to + static_cast<std::size_t>(host()) * c.width(t) * size;
      copy(own, in + t * c.quantum * size, c.length(levels_.rank, t) * size);
      spreading[t % 2] = between_hosts(Op::all_gather, call.dtype, ReduceOp::sum, own, to,
                                       static_cast<std::size_t>(levels_.layout.hosts) * c.width(t));
    }
    if (t >= 1) copy_out(call, c, t - 1);
  }
}

// A piece is split into one shard per rank of a host; local rank l of each host transfers shard l
// between hosts.
void HierarchicalTransport::broadcast(const Collective& call) {
  const Layout& layout = levels_.layout;
  const std::size_t size = size_of(call.dtype);
  const std::size_t whole = std::min(call.count, kStageBytes / size);
  const std::size_t pieces = (call.count + whole - 1) / whole;
  const auto extent = [&](std::size_t p) { return std::min(whole, call.count - p * whole); };
  const auto shard = [&](int l, std::size_t p) { return shard_of(extent(p), layout.per_host, l); };
  const bool root = levels_.rank == call.peer;
  Work crossing[2];
  for (std::size_t t = 0; t <= pieces; ++t) {
    if (t < pieces && root) {
      copy(stage(local(), t), static_cast<const std::byte*>(call.in) + t * whole * size,
           extent(t) * size);
    }
    if (t >= 1) crossing[(t - 1) % 2].wait();
    host_barrier();
    if (t < pieces) {
      const Shard mine = shard(local(), t);
      const std::byte* from = stage(layout.local(call.peer), t) + mine.begin * size;
      crossing[t % 2] = between_hosts(Op::broadcast, call.dtype, ReduceOp::sum, from,
                                      result(local(), t), mine.size, layout.host(call.peer));
    }
    if (t == 0) continue;
    auto* out = static_cast<std::byte*>(call.out) + (t - 1) * whole * size;
    for (int l = 0; l < layout.per_host; ++l) {
      const Shard theirs = shard(l, t - 1);
      copy(out + theirs.begin * size, result(l, t - 1), theirs.size * size);
    }
  }
}

// Returns the counts of all ranks. Throws on every rank if those of two ranks differ.
CountMatrix HierarchicalTransport::gather_counts(const Collective& call) const {
  const std::size_t row = CountMatrix::row_bytes(ranks());
  const std::size_t host_rows = row * static_cast<std::size_t>(levels_.layout.per_host);
  std::vector<std::byte> all(row * static_cast<std::size_t>(ranks()));
  std::byte* of_host = all.data() + static_cast<std::size_t>(host()) * host_rows;
  std::byte* own = of_host + static_cast<std::size_t>(local()) * row;
  CountMatrix::write_row(*call.counts, own);
  levels_.local
      ->submit({Op::all_gather, DType::u8, ReduceOp::sum, Traffic::control, own, of_host, host_rows,
                -1, ""})
      .wait();
  between_hosts(Op::all_gather, DType::u8, ReduceOp::sum, of_host, all.data(), all.size()).wait();
  CountMatrix counts(ranks());
  for (int r = 0; r < ranks(); ++r) {
    counts.read_row(r, all.data() + static_cast<std::size_t>(r) * row);
  }
  counts.check(call.label, sequence_, levels_.name);
  return counts;
}

// Local rank l collects the data of its host for local rank l of every host, and transfers it
// between hosts. A piece is up to `quantum` elements from every rank to every other.
void HierarchicalTransport::exchange(const Collective& call, const CountMatrix& counts) {
  const Layout& layout = levels_.layout;
  const std::size_t size = size_of(call.dtype);
  const auto n = static_cast<std::size_t>(ranks());
  const std::size_t quantum = kStageBytes / n / size;
  const std::size_t pieces = (counts.largest() + quantum - 1) / quantum;
  for (auto* buffers : {partials_, combined_}) {
    for (int i = 0; i < 2; ++i) buffers[i].resize(n * quantum * size);
  }
  const int self = levels_.rank;
  const auto length = [&](int from, int to, std::size_t p) {
    const std::size_t count = counts.sent(from, to), begin = p * quantum;
    return count > begin ? std::min(quantum, count - begin) : 0;
  };
  const auto pack_exchange = [&](std::size_t p) {
    const auto* in = static_cast<const std::byte*>(call.in);
    for (int r = 0; r < ranks(); ++r) {
      copy(stage(local(), p) + static_cast<std::size_t>(r) * quantum * size,
           in + (counts.in_begin(self, r) + p * quantum) * size, length(self, r, p) * size);
    }
  };
  // Copies to partials_ what the ranks of this host send to this local rank of all hosts, ordered
  // by destination, and starts the transfer. It arrives in combined_, ordered by source.
  const auto transfer = [&](std::size_t p) {
    auto between = std::make_shared<ExchangeCounts>();
    std::byte* to = partials_[p % 2].data();
    for (int h = 0; h < layout.hosts; ++h) {
      std::size_t in = 0, out = 0;
      for (int l = 0; l < layout.per_host; ++l) {
        const int from = layout.rank(host(), l), destination = layout.rank(h, local());
        const std::size_t count = length(from, destination, p);
        copy(to, stage(l, p) + static_cast<std::size_t>(destination) * quantum * size,
             count * size);
        to += count * size;
        in += count;
        out += length(layout.rank(h, l), self, p);
      }
      between->in.push_back(in);
      between->out.push_back(out);
    }
    Collective crossing{Op::all_to_all,
                        call.dtype,
                        ReduceOp::sum,
                        Traffic::control,
                        partials_[p % 2].data(),
                        combined_[p % 2].data(),
                        part_begin(between->in, layout.hosts),
                        -1,
                        ""};
    crossing.counts = std::move(between);
    return levels_.inter_host->submit(std::move(crossing));
  };
  const auto take = [&](std::size_t p) {
    auto* out = static_cast<std::byte*>(call.out);
    const std::byte* from = combined_[p % 2].data();
    for (int r = 0; r < ranks(); ++r) {
      const std::size_t bytes = length(r, self, p) * size;
      copy(out + (counts.out_begin(self, r) + p * quantum) * size, from, bytes);
      from += bytes;
    }
  };

  Work crossing;
  for (std::size_t t = 0; t <= pieces; ++t) {
    if (t < pieces) {
      pack_exchange(t);
      host_barrier();
    }
    Work next;
    if (t < pieces) next = transfer(t);
    if (t >= 1) {
      crossing.wait();
      take(t - 1);
    }
    crossing = next;
  }
}

}  // namespace tessera::comm::hierarchical
