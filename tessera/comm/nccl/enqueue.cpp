#include "tessera/comm/nccl/enqueue.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <deque>
#include <functional>
#include <vector>

#include "tessera/comm/nccl/ordered.h"
#include "tessera/comm/torch_dtype.h"
#include "tessera/core/index.h"

namespace tessera::comm::nccl {
namespace {

Type to_type(DType type) {
  switch (type) {
    case DType::f32: return Type::f32;
    case DType::f64: return Type::f64;
    case DType::bf16: return Type::bf16;
    case DType::f16: return Type::f16;
    case DType::i32: return Type::i32;
    case DType::i64: return Type::i64;
    default: return Type::u8;
  }
}

// Runs `calls` in one ncclGroup, whose operations NCCL starts together and fuses if it can.
void in_one_group(const Api& api, const char* name, const std::function<void()>& calls) {
  api.check(api.group_start(), name);
  try {
    calls();
  } catch (...) {
    api.group_end();
    throw;
  }
  api.check(api.group_end(), name);
}

// [Note: own sums] NCCL adds along its rings, in the type of the buffer. That is the default for
// sums: exact for integers and within rounding for floats. Tessera reduces itself, over an exchange
// of shards that sends the same bytes, if NCCL's result would be wrong or must be exact: in
// deterministic mode, for min and max (NCCL drops NaNs), for averages of integers (NCCL's sum may
// wrap), and for reduce_scatter of a buffer that the number of ranks does not divide.
bool we_add(const Collective& call, int ranks, bool deterministic) {
  if (ranks == 1 || !is_reduction(call.op)) return false;
  const bool integer =
      call.dtype == DType::i32 || call.dtype == DType::i64 || call.dtype == DType::u8;
  return deterministic || call.reduce == ReduceOp::min || call.reduce == ReduceOp::max ||
         (call.reduce == ReduceOp::avg && integer);
}

bool divides(const Collective& call, int ranks) {
  return call.count % static_cast<std::size_t>(ranks) == 0;
}

// Steps of one call without parts. enqueue() runs each step for all parts together.
class Enqueue {
 public:
  Enqueue(const Place& place, const Collective& call, TrafficMeter& meter)
      : place_(place),
        api_(place.api),
        call_(call),
        meter_(meter),
        type_(to_type(call.dtype)),
        size_(size_of(call.dtype)),
        stream_(place.stream),
        in_(static_cast<std::byte*>(const_cast<void*>(call.in))),
        out_(static_cast<std::byte*>(call.out)),
        own_(shard_of(call.count, place.ranks, place.rank)),
        even_(divides(call, place.ranks)),
        ours_(we_add(call, place.ranks, place.deterministic)) {}

  // Returns whether shards are sent and received one by one, rather than by one NCCL call.
  bool is_exchange() const {
    return ours_ || (!even_ && (call_.op == Op::reduce_scatter || call_.op == Op::all_gather)) ||
           call_.op == Op::all_to_all;
  }

  void before() {
    if (call_.op == Op::all_gather) {
      copy(at_shard(out_, place_.rank), in_, own_.size);
    } else if (call_.counts) {
      copy(out_ + part_begin(call_.counts->out, place_.rank) * size_,
           in_ + part_begin(call_.counts->in, place_.rank) * size_,
           nth(call_.counts->in, place_.rank));
    } else if (call_.op == Op::all_to_all) {
      keep_own(in_, out_);
    } else {
      shards_ = temporary(own_.size * static_cast<std::size_t>(place_.ranks));
      keep_own(in_, base());
    }
  }

  void one_call() {
    switch (call_.op) {
      case Op::all_reduce: return all_reduce();
      case Op::reduce_scatter: return reduce_scatter();
      case Op::reduce: return reduce();
      case Op::all_gather: return gather_evenly(in_, out_);
      case Op::broadcast: return broadcast();
      case Op::send: return check(api_.send(in_, call_.count, type_, call_.peer, comm(), stream_));
      case Op::recv: return check(api_.recv(out_, call_.count, type_, call_.peer, comm(), stream_));
      case Op::all_to_all:
      case Op::barrier: return;
    }
  }

  // Called inside an ncclGroup.
  void messages() {
    if (call_.op == Op::all_gather) return gather_messages(in_, out_);
    if (call_.counts) return exchange_unequal_messages();
    exchange_messages(in_, call_.op == Op::all_to_all ? out_ : base());
  }

  void after() {
    if (!ours_ && !(call_.op == Op::reduce_scatter && !even_)) return;
    const int ranks = place_.ranks;
    std::vector<at::Tensor> sources;
    for (int r = 0; r < ranks; ++r) {
      sources.push_back(view(base() + static_cast<std::size_t>(r) * own_.size * size_, own_.size));
    }
    const bool scatter = call_.op == Op::reduce_scatter;
    const at::Tensor sum = scatter ? view(out_, own_.size) : sources.front();
    reduce_in_order(sum, sources, call_.reduce, call_.reduce == ReduceOp::avg ? ranks : 1);
    meter_.copied(own_.size * size_);
    if (call_.op == Op::all_reduce) gather(base(), out_);
    if (call_.op == Op::reduce) gather_on_root(base(), out_);
  }

 private:
  Comm comm() const { return place_.comm; }
  void check(Result result) const { api_.check(result, name(call_.op)); }

  // With one rank every reduction is a copy, which NCCL's sum does.
  Combine combine() const {
    return call_.reduce == ReduceOp::avg && place_.ranks > 1 ? Combine::avg : Combine::sum;
  }

  void all_reduce() {
    check(api_.all_reduce(in_, out_, call_.count, type_, combine(), comm(), stream_));
  }
  void reduce_scatter() {
    check(api_.reduce_scatter(in_, out_, own_.size, type_, combine(), comm(), stream_));
  }
  void reduce() {
    check(api_.reduce(in_, out_, call_.count, type_, combine(), call_.peer, comm(), stream_));
  }
  void broadcast() {
    check(api_.broadcast(in_, out_, call_.count, type_, call_.peer, comm(), stream_));
  }

  void together(const std::function<void()>& calls) { in_one_group(api_, name(call_.op), calls); }
  void send(const std::byte* from, std::size_t count, int to) {
    if (count > 0) check(api_.send(from, count, type_, to, comm(), stream_));
  }
  void receive(std::byte* to, std::size_t count, int from) {
    if (count > 0) check(api_.recv(to, count, type_, from, comm(), stream_));
  }
  void copy(std::byte* to, std::byte* from, std::size_t count) {
    if (count == 0 || to == from) return;
    view(to, count).copy_(view(from, count), /*non_blocking=*/true);
    meter_.copied(count * size_);
  }

  Shard shard(int rank) const { return shard_of(call_.count, place_.ranks, rank); }
  std::byte* at_shard(std::byte* buffer, int rank) const {
    return buffer + shard(rank).begin * size_;
  }

  // from: this rank's shard; to: all shards.
  void gather(std::byte* from, std::byte* to) {
    if (even_) return gather_evenly(from, to);
    copy(at_shard(to, place_.rank), from, own_.size);
    together([&] { gather_messages(from, to); });
  }
  void gather_evenly(std::byte* from, std::byte* to) {
    check(api_.all_gather(from, to, own_.size, type_, comm(), stream_));
  }
  void gather_messages(std::byte* from, std::byte* to) {
    for (int r = 0; r < place_.ranks; ++r) {
      if (r == place_.rank) continue;
      send(from, own_.size, r);
      receive(at_shard(to, r), shard(r).size, r);
    }
  }

  // from: one shard for every rank; to: this rank's shard from every rank, in rank order.
  void exchange_messages(std::byte* from, std::byte* to) {
    for (int r = 0; r < place_.ranks; ++r) {
      if (r == place_.rank) continue;
      send(at_shard(from, r), shard(r).size, r);
      receive(to + static_cast<std::size_t>(r) * own_.size * size_, own_.size, r);
    }
  }
  // Counts of 0 are sent too: the first call then connects all pairs of ranks, while the ranks take
  // their turns (Submission::connects), and a later call with other counts need not connect. To
  // NCCL such a pair is only a synchronization.
  void exchange_unequal_messages() {
    std::size_t in = 0, out = 0;
    for (int r = 0; r < place_.ranks; ++r) {
      const std::size_t sent = nth(call_.counts->in, r), received = nth(call_.counts->out, r);
      if (r != place_.rank) {
        check(api_.send(in_ + in * size_, sent, type_, r, comm(), stream_));
        check(api_.recv(out_ + out * size_, received, type_, r, comm(), stream_));
      }
      in += sent;
      out += received;
    }
  }
  // Copies this rank's own shard in an exchange.
  void keep_own(std::byte* from, std::byte* to) {
    copy(to + static_cast<std::size_t>(place_.rank) * own_.size * size_,
         at_shard(from, place_.rank), own_.size);
  }

  void gather_on_root(std::byte* from, std::byte* to) {
    const bool root = place_.rank == call_.peer;
    if (root) copy(at_shard(to, place_.rank), from, own_.size);
    together([&] {
      if (!root) return send(from, own_.size, call_.peer);
      for (int r = 0; r < place_.ranks; ++r) {
        if (r != place_.rank) receive(at_shard(to, r), shard(r).size, r);
      }
    });
  }

  // This rank's shard from every rank.
  std::byte* base() const { return static_cast<std::byte*>(shards_.data_ptr()); }

  at::TensorOptions options() const {
    return at::TensorOptions().dtype(to_scalar_type(call_.dtype)).device(place_.device);
  }
  at::Tensor temporary(std::size_t count) const {
    return at::empty({static_cast<std::int64_t>(count)}, options());
  }
  at::Tensor view(std::byte* data, std::size_t count) const {
    if (count == 0) return temporary(0);
    return at::from_blob(
        data, {static_cast<std::int64_t>(count)}, [](void*) {}, options(), place_.device);
  }

  const Place& place_;
  const Api& api_;
  const Collective& call_;
  TrafficMeter& meter_;
  const Type type_;
  const std::size_t size_;
  const Stream stream_;
  std::byte* const in_;
  std::byte* const out_;
  const Shard own_;
  const bool even_;
  const bool ours_;
  at::Tensor shards_;
};

}  // namespace

bool uses_tensors(const Collective& call, int rank, int ranks, bool deterministic) {
  if (call.op == Op::all_to_all || we_add(call, ranks, deterministic)) return true;
  if (call.op != Op::reduce_scatter && call.op != Op::all_gather) return false;
  bool uneven = false;
  for_each_part(call, ranks, rank,
                [&](const Collective& part) { uneven = uneven || !divides(part, ranks); });
  return uneven;
}

// See [Note: one call] in progress.h. NCCL's collectives are one ncclGroup, and our sends and
// receives another, because NCCL does not guarantee that the two can be mixed.
void enqueue(const Place& place, const Collective& call, TrafficMeter& meter) {
  std::vector<Collective> parts;
  for_each_part(call, place.ranks, place.rank, [&](const Collective& part) {
    // With unequal counts, a rank without input may receive.
    if ((part.count > 0 || part.counts) && part.op != Op::barrier) parts.push_back(part);
  });
  std::deque<Enqueue> steps;
  std::size_t exchanges = 0;
  for (const Collective& part : parts) {
    exchanges += steps.emplace_back(place, part, meter).is_exchange();
  }
  const auto each = [&](bool exchange, void (Enqueue::*step)()) {
    for (Enqueue& part : steps) {
      if (part.is_exchange() == exchange) (part.*step)();
    }
  };
  each(true, &Enqueue::before);
  const std::size_t calls = steps.size() - exchanges;
  if (calls == 1) each(false, &Enqueue::one_call);
  if (calls > 1) {
    in_one_group(place.api, name(call.op), [&] { each(false, &Enqueue::one_call); });
  }
  if (exchanges > 0) {
    in_one_group(place.api, name(call.op), [&] { each(true, &Enqueue::messages); });
  }
  each(true, &Enqueue::after);
}

}  // namespace tessera::comm::nccl
