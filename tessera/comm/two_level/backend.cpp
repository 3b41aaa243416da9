#include "tessera/comm/two_level/backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/comm/mpi/backend.h"
#include "tessera/comm/queue.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/two_level/transport.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::two_level {
namespace {

using std::chrono::seconds;

// A rank that stops is missed by its own host first, and its name is what should be reported: the
// other hosts, which only see that this host is late, are more patient.
Options patient(Options options) {
  options.timeout += std::max<std::chrono::milliseconds>(seconds(1), options.timeout / 10);
  return options;
}

class TwoLevelBackend final : public Backend {
 public:
  TwoLevelBackend(std::shared_ptr<Peers> peers, std::shared_ptr<mpi::Runtime> runtime,
                  std::vector<int> members, std::string name, Options options)
      : peers_(std::move(peers)),
        runtime_(std::move(runtime)),
        members_(std::move(members)),
        name_(std::move(name)),
        options_(options),
        group_peers_(std::make_shared<GroupPeers>(peers_)) {
    runtime_->attend(peers_);
    far_ = mpi::make_backend(group_peers_, runtime_, members_, name_ + "/all", patient(options_));
    home_ = find_homes();
    layout_ = find_layout(home_, name_);
    const int own = rank();
    std::vector<int> here, lane;
    for (int l = 0; l < layout_.per_host; ++l) here.push_back(member(layout_.host(own), l));
    for (int h = 0; h < layout_.hosts; ++h) lane.push_back(member(h, layout_.local(own)));
    memories_ = std::make_shared<Memories>(layout_, own);
    local_ =
        shm::make_backend(group_peers_, here, str(name_, "/host ", layout_.host(own)), options_);
    queue_ = std::make_unique<Queue>(
        std::make_shared<TwoLevelTransport>(
            Parts{group_peers_, local_,
                  mpi::make_backend(group_peers_, runtime_, lane,
                                    str(name_, "/lane ", layout_.local(own)), patient(options_)),
                  memories_, meter_, layout_, name_, own}),
        name_);
  }

  int rank() const override { return far_->rank(); }
  int size() const override { return far_->size(); }
  std::string kind() const override { return "two-level"; }
  std::string name() const override { return name_; }
  TrafficCounts traffic() const override { return meter_->counts(); }

  Work submit(Collective call, Attachments attachments) override {
    check(call, size(), rank());
    meter_->charge(call, size(), rank());
    if (!is_point_to_point(call.op)) return queue_->submit(std::move(call), std::move(attachments));
    if (layout_.host(call.peer) != layout_.host(rank())) {
      return far_->submit(std::move(call), std::move(attachments));
    }
    call.peer = layout_.local(call.peer);
    return local_->submit(std::move(call), std::move(attachments));
  }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    // A barrier that carries the size finds ranks that disagree before anything is mapped.
    Collective agree;
    agree.count = bytes;
    agree.traffic = Traffic::control;
    agree.label = "symmetric memory";
    queue_->submit(std::move(agree), {}).wait();
    return memories_->add(local_->symmetric(bytes));
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    std::vector<int> world, home;
    for (const int member : members) {
      world.push_back(members_.at(static_cast<std::size_t>(member)));
      const auto same = [&](int other) {
        return home_[static_cast<std::size_t>(other)] == home_[static_cast<std::size_t>(member)];
      };
      home.push_back(
          static_cast<int>(std::find_if(members.begin(), members.end(), same) - members.begin()));
    }
    const Layout layout = find_layout(home, name);
    if (layout.hosts == 1) return shm::make_backend(peers_, std::move(world), name, options_);
    if (layout.per_host == 1) {
      return mpi::make_backend(peers_, runtime_, std::move(world), name, options_);
    }
    return two_level::make_backend(peers_, runtime_, std::move(world), std::move(name), options_);
  }

 private:
  int member(int host, int local) const {
    return members_[static_cast<std::size_t>(layout_.rank(host, local))];
  }

  // The first rank of the group on each rank's host. A rank knows only who is on its own.
  std::vector<int> find_homes() const {
    const auto here = [&](int other) { return peers_->same_host(other); };
    const std::int32_t own = static_cast<std::int32_t>(
        std::find_if(members_.begin(), members_.end(), here) - members_.begin());
    std::vector<std::int32_t> all(members_.size());
    far_->submit({Op::all_gather, DType::i32, ReduceOp::sum, Traffic::control, &own, all.data(),
                  all.size(), -1, "hosts"})
        .wait();
    return {all.begin(), all.end()};
  }

  const std::shared_ptr<Peers> peers_;
  const std::shared_ptr<mpi::Runtime> runtime_;
  const std::vector<int> members_;
  const std::string name_;
  const Options options_;
  const std::shared_ptr<GroupPeers> group_peers_;
  const std::shared_ptr<TrafficMeter> meter_ = std::make_shared<TrafficMeter>();
  std::shared_ptr<Backend> far_;  // messages to ranks on other hosts
  std::vector<int> home_;
  Layout layout_;
  std::shared_ptr<Memories> memories_;
  std::shared_ptr<Backend> local_;
  std::unique_ptr<Queue> queue_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers,
                                      std::shared_ptr<mpi::Runtime> runtime,
                                      std::vector<int> members, std::string name, Options options) {
  return std::make_shared<TwoLevelBackend>(std::move(peers), std::move(runtime), std::move(members),
                                           std::move(name), options);
}

}  // namespace tessera::comm::two_level
