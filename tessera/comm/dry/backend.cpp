#include "tessera/comm/dry/backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/local_peers.h"
#include "tessera/comm/segment_memory.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::dry {
namespace {

// Operation that failed when it was submitted; wait() throws its error.
class Ended final : public WorkState {
 public:
  explicit Ended(std::exception_ptr error) : error_(std::move(error)) {}
  void wait() override { std::rethrow_exception(error_); }
  bool done() const override { return true; }

 private:
  std::exception_ptr error_;
};

class DryBackend final : public Backend {
 public:
  DryBackend(int rank, int ranks, std::string name)
      : rank_(rank), ranks_(ranks), name_(std::move(name)) {
    if (ranks < 1 || rank < 0 || rank >= ranks) {
      throw UsageError(str("dry group: rank ", rank, " of ", ranks,
                           ": the rank must be 0 to N-1, and the number of ranks N at least 1"));
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string kind() const override { return "dry"; }
  std::string name() const override { return name_; }
  TrafficCounts traffic() const override { return meter_.counts(); }
  void add_traffic(const TrafficCounts& counts) override { meter_.add(counts); }
  bool shares_memory() const override { return true; }
  bool simulated() const override { return true; }
  bool takes_parts() const override { return true; }

  Work submit(Collective call, Attachments attachments) override {
    check(call, ranks_, rank_);
    meter_.charge(call, ranks_, rank_);
    try {
      if (attachments.before) attachments.before();
      if (!call.shared) {
        for_each_part(call, ranks_, rank_, [this](const Collective& part) { run(part); });
      }
      if (attachments.after) attachments.after();
    } catch (...) {
      return Work(std::make_shared<Ended>(std::current_exception()));
    }
    return Work();
  }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    const std::size_t stride = SegmentMemory::stride(bytes);
    const int self[] = {0};
    auto segment =
        make_local_peers(1)[0]->share(name_, self, stride * static_cast<std::size_t>(ranks_),
                                      Pages::when_touched, std::chrono::seconds(1));
    return std::make_shared<SegmentMemory>(std::move(segment), stride);
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    const auto self = std::find(members.begin(), members.end(), rank_);
    if (self == members.end()) {
      throw UsageError(str("rank ", rank_, " is not a member of group ", name));
    }
    return make_backend(static_cast<int>(self - members.begin()), static_cast<int>(members.size()),
                        std::move(name));
  }

 private:
  void run(const Collective& call) {
    const std::size_t size = size_of(call.dtype);
    const Shard own = own_shard(call, call.count, ranks_, rank_);
    const auto* in = static_cast<const std::byte*>(call.in);
    auto* out = static_cast<std::byte*>(call.out);
    switch (call.op) {
      case Op::all_reduce: return copy(out, in, call.bytes());
      case Op::reduce:
      case Op::broadcast:
        if (rank_ == call.peer) copy(out, in, call.bytes());
        return;
      case Op::reduce_scatter: return copy(out, in + own.begin * size, own.size * size);
      case Op::all_gather: return copy(out + own.begin * size, in, own.size * size);
      case Op::all_to_all:
        if (call.counts) {
          return copy(out + part_begin(call.counts->out, rank_) * size,
                      in + part_begin(call.counts->in, rank_) * size,
                      call.counts->in[static_cast<std::size_t>(rank_)] * size);
        }
        return copy(out + static_cast<std::size_t>(rank_) * own.size * size, in + own.begin * size,
                    own.size * size);
      case Op::recv:
        if (call.bytes() > 0) std::memset(call.out, 0, call.bytes());
        return;
      case Op::barrier:
      case Op::send: return;
    }
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == 0 || to == from) return;
    copy_bytes(to, from, bytes);
    meter_.copied(bytes);
  }

  const int rank_;
  const int ranks_;
  const std::string name_;
  TrafficMeter meter_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(int rank, int ranks, std::string name) {
  return std::make_shared<DryBackend>(rank, ranks, std::move(name));
}

}  // namespace tessera::comm::dry
