#include "tessera/comm/shm/backend.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tessera/comm/queue.h"
#include "tessera/comm/shm/point_to_point.h"
#include "tessera/comm/shm/transport.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::shm {
namespace {

// With a core for every rank a peer is microseconds away and a spin finds it. With fewer, the peer
// may need this very core: sleep at once.
std::chrono::nanoseconds spin_budget(const Options& options, int ranks) {
  if (options.spin.count() >= 0) return options.spin;
  const bool room = ranks <= sysconf(_SC_NPROCESSORS_ONLN);
  return std::chrono::microseconds(room ? 30 : 0);
}

class ShmBackend final : public Backend {
 public:
  ShmBackend(std::shared_ptr<Peers> peers, std::vector<int> members, std::string name,
             Options options)
      : peers_(std::move(peers)),
        members_(std::move(members)),
        name_(std::move(name)),
        options_(options),
        rank_(position()),
        meter_(std::make_shared<TrafficMeter>()),
        watch_(std::make_shared<Watch>(peers_, members_, name_, options.timeout)),
        memories_(std::make_shared<MemoryTable>(rank_)),
        control_(peers_->share(name_, members_, Control::bytes(size()), Pages::when_touched,
                               options.timeout)),
        queue_(std::make_shared<ShmTransport>(control_, memories_, watch_, meter_, rank_, size(),
                                              spin_budget(options, size())),
               name_),
        point_to_point_(control_, memories_, watch_, meter_, rank_, size(),
                        spin_budget(options, size())) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string kind() const override { return "shm"; }
  std::string name() const override { return name_; }
  TrafficCounts traffic() const override { return meter_->counts(); }
  bool shares_memory() const override { return true; }
  bool takes_parts() const override { return true; }

  Work submit(Collective call, Attachments attachments) override {
    check(call, size(), rank_);
    meter_->charge(call, size(), rank_);
    if (is_point_to_point(call.op)) {
      return point_to_point_.submit(std::move(call), std::move(attachments));
    }
    return queue_.submit(std::move(call), std::move(attachments));
  }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    // A barrier that carries the size finds ranks that disagree before anything is mapped.
    Collective agree;
    agree.op = Op::barrier;
    agree.count = bytes;
    agree.traffic = Traffic::control;
    agree.label = "symmetric memory";
    queue_.submit(std::move(agree), {}).wait();
    const std::uint32_t number = memories_->next_number();
    const std::size_t stride = MemoryTable::stride(std::max<std::size_t>(bytes, 1));
    auto segment =
        peers_->share(str(name_, ":memory", number), members_,
                      stride * static_cast<std::size_t>(size()), Pages::reserved, options_.timeout);
    return memories_->add(number, std::move(segment), stride);
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    std::vector<int> world;
    for (const int member : members) world.push_back(members_.at(static_cast<std::size_t>(member)));
    return make_backend(peers_, std::move(world), std::move(name), options_);
  }

 private:
  int position() const {
    const auto found = std::find(members_.begin(), members_.end(), peers_->rank());
    if (found == members_.end()) {
      throw UsageError(str("rank ", peers_->rank(), " is not a member of group ", name_));
    }
    for (const int member : members_) {
      if (!peers_->same_host(member)) {
        throw UsageError(str("group ", name_, " over shm: rank ", member,
                             " is on another host than rank ", peers_->rank(),
                             "; use backend mpi or two-level"));
      }
    }
    return static_cast<int>(found - members_.begin());
  }

  const std::shared_ptr<Peers> peers_;
  const std::vector<int> members_;
  const std::string name_;
  const Options options_;
  const int rank_;
  const std::shared_ptr<TrafficMeter> meter_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<MemoryTable> memories_;
  const std::shared_ptr<Segment> control_;
  Queue queue_;
  PointToPoint point_to_point_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, std::vector<int> members,
                                      std::string name, Options options) {
  return std::make_shared<ShmBackend>(std::move(peers), std::move(members), std::move(name),
                                      options);
}

}  // namespace tessera::comm::shm
