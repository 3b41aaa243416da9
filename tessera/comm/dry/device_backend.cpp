#include "tessera/comm/dry/device_backend.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace tessera::comm::dry {
namespace {

class DryDeviceBackend final : public Backend {
 public:
  DryDeviceBackend(std::shared_ptr<Backend> host, c10::Device device)
      : host_(std::move(host)), device_(device) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string kind() const override { return host_->kind(); }
  std::string name() const override { return host_->name(); }
  TrafficCounts traffic() const override { return meter_.counts() + host_->traffic(); }
  void add_traffic(const TrafficCounts& counts) override { meter_.add(counts); }
  bool simulated() const override { return true; }
  bool on_device() const override { return true; }
  bool takes_parts() const override { return true; }
  Backend& host() override { return *host_; }

  Work submit(Collective call, Attachments attachments) override {
    check(call, size(), rank());
    meter_.charge(call, size(), rank());
    if (attachments.before) attachments.before();
    for_each_part(call, size(), rank(), [this](const Collective& part) { run(part); });
    if (attachments.after) attachments.after();
    return Work();
  }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    return host_->symmetric(bytes);
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    return make_device_backend(host_->subgroup(members, std::move(name)), device_);
  }

 private:
  at::Tensor bytes_at(const void* data, std::size_t bytes) const {
    // Words are copied faster than bytes.
    const bool words = bytes % 4 == 0;
    return at::from_blob(const_cast<void*>(data),
                         {static_cast<std::int64_t>(words ? bytes / 4 : bytes)},
                         at::TensorOptions().dtype(words ? at::kInt : at::kByte).device(device_));
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0 && to != from) bytes_at(to, bytes).copy_(bytes_at(from, bytes), true);
  }

  void run(const Collective& call) const {
    const std::size_t element = size_of(call.dtype);
    const Shard own = shard_of(call.count, size(), rank());
    const auto* in = static_cast<const std::byte*>(call.in);
    auto* out = static_cast<std::byte*>(call.out);
    switch (call.op) {
      case Op::all_reduce: return copy(out, in, call.bytes());
      case Op::reduce:
      case Op::broadcast:
        if (rank() == call.peer) copy(out, in, call.bytes());
        return;
      case Op::reduce_scatter: return copy(out, in + own.begin * element, own.size * element);
      case Op::all_gather: return gather(out, in, call.count, own, element);
      case Op::all_to_all:
        if (call.counts) {
          return copy(out + part_begin(call.counts->out, rank()) * element,
                      in + part_begin(call.counts->in, rank()) * element,
                      call.counts->in[static_cast<std::size_t>(rank())] * element);
        }
        return copy(out + static_cast<std::size_t>(rank()) * own.size * element,
                    in + own.begin * element, own.size * element);
      case Op::recv:
        if (call.bytes() > 0) bytes_at(out, call.bytes()).zero_();
        return;
      case Op::barrier:
      case Op::send: return;
    }
  }

  void gather(std::byte* out, const std::byte* in, std::size_t count, const Shard& own,
              std::size_t element) const {
    const std::size_t bytes = own.size * element;
    if (bytes == 0) return;
    if (count == own.size * static_cast<std::size_t>(size())) {
      at::Tensor whole = bytes_at(out, bytes * static_cast<std::size_t>(size()));
      const at::Tensor mine = bytes_at(in, bytes);
      // In place, this rank's own shard is copied onto itself.
      whole.view({size(), mine.numel()}).copy_(mine.expand({size(), mine.numel()}), true);
      return;
    }
    for (int r = 0; r < size(); ++r) {  // the last shards may be shorter
      const Shard theirs = shard_of(count, size(), r);
      copy(out + theirs.begin * element, in, std::min(theirs.size, own.size) * element);
    }
  }

  const std::shared_ptr<Backend> host_;
  const c10::Device device_;
  TrafficMeter meter_;
};

}  // namespace

std::shared_ptr<Backend> make_device_backend(std::shared_ptr<Backend> host, c10::Device device) {
  return std::make_shared<DryDeviceBackend>(std::move(host), device);
}

}  // namespace tessera::comm::dry
