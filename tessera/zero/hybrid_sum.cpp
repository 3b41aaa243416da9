#include "tessera/zero/hybrid_sum.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

#include "tessera/comm/collective.h"
#include "tessera/comm/torch_dtype.h"

namespace tessera::zero {

// Sums whose second half has not started, oldest first.
class HybridSum::Queue {
 public:
  struct Sum {
    at::Tensor shard;
    comm::Call call;
    comm::Work first;
    comm::Work second = {};
    bool followed = false;
    std::exception_ptr failure = nullptr;  // of the first half, or of starting the second
  };

  explicit Queue(comm::Group replicate) : replicate_(std::move(replicate)) {}

  std::shared_ptr<Sum> add(Sum sum) {
    return waiting_.emplace_back(std::make_shared<Sum>(std::move(sum)));
  }
  void poll() {
    while (!waiting_.empty() && waiting_.front()->first.done()) follow_front();
  }
  void wait(const Sum& sum) {
    while (!sum.followed) follow_front();
    if (sum.failure) std::rethrow_exception(sum.failure);
    sum.second.wait();
  }

 private:
  void follow_front() {
    const std::shared_ptr<Sum> sum = std::move(waiting_.front());
    waiting_.pop_front();
    sum->followed = true;
    try {
      sum->first.wait();
      sum->second = replicate_.all_reduce(sum->shard, sum->call);
    } catch (...) {
      sum->failure = std::current_exception();  // rethrown by the wait for this sum
    }
  }

  const comm::Group replicate_;
  std::deque<std::shared_ptr<Sum>> waiting_;
};

HybridSum::HybridSum(comm::Group replicate)
    : replicate_(std::move(replicate)), queue_(std::make_shared<Queue>(replicate_)) {}
HybridSum::~HybridSum() = default;

namespace {

comm::Work start_copies(const DataGroups& groups, const at::Tensor& to, const at::Tensor& from,
                        comm::Call call) {
  const auto charge = [&](const comm::Group& group, comm::Op op, const at::Tensor& whole) {
    comm::Collective what;
    what.op = op;
    what.dtype = comm::to_dtype(whole.scalar_type());
    what.count = static_cast<std::size_t>(whole.numel());
    if (op == comm::Op::reduce_scatter) what.parts = call.parts;
    comm::TrafficCounts counts;
    counts.sent_bytes = comm::ring_bytes(what, group.size(), group.rank());
    counts.calls[static_cast<std::size_t>(op)] = 1;
    group.add_traffic(counts);
  };
  charge(groups.shard, comm::Op::reduce_scatter, from);
  charge(groups.replicate, comm::Op::all_reduce, to);
  call.copies = groups.replicate.size();
  return groups.all.reduce_scatter(to, from, call);
}

}  // namespace

comm::Work HybridSum::start(const DataGroups& groups, const at::Tensor& to, const at::Tensor& from,
                            const comm::Call& call) {
  if (groups.all.shares_memory() && from.is_cpu()) return start_copies(groups, to, from, call);
  comm::Call across = call;
  across.parts = nullptr;
  const comm::Work first = groups.shard.reduce_scatter(to, from, call);
  if (groups.shard.size() == 1) {  // a copy in the current stream, or on this thread
    first.wait();
    return replicate_.all_reduce(to, across);
  }
  if (!replicate_.on_device() || from.is_cpu()) {
    class Both final : public comm::WorkState {
     public:
      Both(std::shared_ptr<Queue> queue, std::shared_ptr<Queue::Sum> sum)
          : queue_(std::move(queue)), sum_(std::move(sum)) {}
      void wait() override { queue_->wait(*sum_); }
      bool done() const override { return sum_->followed && sum_->second.done(); }

     private:
      const std::shared_ptr<Queue> queue_;
      const std::shared_ptr<Queue::Sum> sum_;
    };
    return comm::Work(std::make_shared<Both>(queue_, queue_->add({to, across, first})));
  }
  const c10::impl::VirtualGuardImpl device(from.device().type());
  if (!stream_) stream_ = device.getStreamFromGlobalPool(from.device(), /*isHighPriority=*/true);
  const c10::StreamGuard guard(*stream_);
  first.wait();  // the stream waits, not the host
  return replicate_.all_reduce(to, across);
}

void HybridSum::poll() { queue_->poll(); }

}  // namespace tessera::zero
