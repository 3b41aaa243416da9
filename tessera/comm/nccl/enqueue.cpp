#include "tessera/comm/nccl/enqueue.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <exception>
#include <functional>

#include "tessera/comm/nccl/ordered.h"
#include "tessera/comm/torch_dtype.h"

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

// [Note: whose sum] NCCL adds along its rings, in the type of the buffer: for sums that is the
// default, exact for integers and within rounding for floats. We add, over an exchange of shards
// that moves the same bytes, whenever it would not be right or is asked to be exact: in
// deterministic mode, for min and max (NCCL loses NaNs), for averages of integers (its sum may
// wrap), and for reduce_scatter of a buffer that does not divide by the ranks.
class Enqueue {
 public:
  Enqueue(const Place& place, const Collective& call, TrafficMeter& meter)
      : place_(place),
        api_(place.api),
        call_(call),
        meter_(meter),
        type_(to_type(call.dtype)),
        size_(size_of(call.dtype)),
        stream_(place.stream.native_handle()),
        in_(static_cast<std::byte*>(const_cast<void*>(call.in))),
        out_(static_cast<std::byte*>(call.out)),
        own_(shard_of(call.count, place.ranks, place.rank)),
        even_(call.count % static_cast<std::size_t>(place.ranks) == 0) {}

  void run() {
    if (call_.count == 0) return;
    switch (call_.op) {
      case Op::all_reduce: return ours() ? ordered() : all_reduce();
      case Op::reduce_scatter: return ours() || !even_ ? ordered() : reduce_scatter();
      case Op::reduce: return ours() ? ordered() : reduce();
      case Op::all_gather: return gather(in_, out_);
      case Op::all_to_all: return exchange(in_, out_);
      case Op::broadcast: return broadcast();
      case Op::send: return check(api_.send(in_, call_.count, type_, call_.peer, comm(), stream_));
      case Op::recv: return check(api_.recv(out_, call_.count, type_, call_.peer, comm(), stream_));
      case Op::barrier: return;
    }
  }

 private:
  Comm comm() const { return place_.comm; }
  void check(Result result) const { api_.check(result, name(call_.op)); }

  bool ours() const {
    if (place_.ranks == 1) return false;
    const bool integer =
        call_.dtype == DType::i32 || call_.dtype == DType::i64 || call_.dtype == DType::u8;
    return place_.deterministic || call_.reduce == ReduceOp::min || call_.reduce == ReduceOp::max ||
           (call_.reduce == ReduceOp::avg && integer);
  }

  // Of one rank every reduction is the copy that NCCL makes of a sum.
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

  // Several sends and receives that NCCL runs together.
  void together(const std::function<void()>& calls) {
    check(api_.group_start());
    try {
      calls();
    } catch (...) {
      api_.group_end();
      throw;
    }
    check(api_.group_end());
  }
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
    if (even_) return check(api_.all_gather(from, to, own_.size, type_, comm(), stream_));
    copy(at_shard(to, place_.rank), from, own_.size);
    together([&] {
      for (int r = 0; r < place_.ranks; ++r) {
        if (r == place_.rank) continue;
        send(from, own_.size, r);
        receive(at_shard(to, r), shard(r).size, r);
      }
    });
  }

  // from: a shard for everybody; to: this rank's shard from everybody, in submission.
  void exchange(std::byte* from, std::byte* to) {
    const std::size_t stride = own_.size * size_;
    copy(to + static_cast<std::size_t>(place_.rank) * stride, at_shard(from, place_.rank),
         own_.size);
    together([&] {
      for (int r = 0; r < place_.ranks; ++r) {
        if (r == place_.rank) continue;
        send(at_shard(from, r), shard(r).size, r);
        receive(to + static_cast<std::size_t>(r) * stride, own_.size, r);
      }
    });
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

  void ordered() {
    const int ranks = place_.ranks;
    const at::Tensor shards = temporary(own_.size * static_cast<std::size_t>(ranks));
    auto* base = static_cast<std::byte*>(shards.data_ptr());
    exchange(in_, base);
    std::vector<at::Tensor> sources;
    for (int r = 0; r < ranks; ++r) {
      sources.push_back(view(base + static_cast<std::size_t>(r) * own_.size * size_, own_.size));
    }
    const bool scatter = call_.op == Op::reduce_scatter;
    const at::Tensor sum = scatter ? view(out_, own_.size) : sources.front();
    reduce_in_order(sum, sources, call_.reduce, call_.reduce == ReduceOp::avg ? ranks : 1);
    meter_.copied(own_.size * size_);
    if (call_.op == Op::all_reduce) gather(base, out_);
    if (call_.op == Op::reduce) gather_on_root(base, out_);
  }

  at::TensorOptions options() const {
    return at::TensorOptions().dtype(to_scalar_type(call_.dtype)).device(place_.stream.device());
  }
  at::Tensor temporary(std::size_t count) const {
    return at::empty({static_cast<std::int64_t>(count)}, options());
  }
  at::Tensor view(std::byte* data, std::size_t count) const {
    if (count == 0) return temporary(0);
    return at::from_blob(
        data, {static_cast<std::int64_t>(count)}, [](void*) {}, options(), place_.stream.device());
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
};

}  // namespace

void enqueue(const Place& place, const Collective& call, TrafficMeter& meter) {
  Enqueue(place, call, meter).run();
}

}  // namespace tessera::comm::nccl
