#include "tessera/comm/hierarchical/backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/comm/hierarchical/transport.h"
#include "tessera/comm/mpi/backend.h"
#include "tessera/comm/queued_backend.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::hierarchical {
namespace {

using std::chrono::seconds;

// A rank that stops is missed by its own host first, and its name is what should be reported: the
// other hosts, which only see that this host is late, are more patient.
GroupOptions patient(GroupOptions options) {
  options.timeout += std::max<std::chrono::milliseconds>(seconds(1), options.timeout / 10);
  return options;
}

class HierarchicalBackend final : public QueuedBackend {
 public:
  HierarchicalBackend(std::shared_ptr<Peers> peers, std::shared_ptr<mpi::Runtime> runtime,
                      std::vector<int> members, std::string name, GroupOptions options)
      : QueuedBackend(std::move(peers), std::move(members), std::move(name), options),
        runtime_(std::move(runtime)) {
    runtime_->watch_peers(peers_);
    const auto group_peers = std::make_shared<GroupPeers>(peers_);
    remote_ = mpi::make_backend(group_peers, runtime_, members_, name_ + "/all", patient(options_));
    home_ = find_homes();
    layout_ = find_layout(home_, name_);
    std::vector<int> here, across;
    for (int l = 0; l < layout_.per_host; ++l) here.push_back(member(layout_.host(rank_), l));
    for (int h = 0; h < layout_.hosts; ++h) across.push_back(member(h, layout_.local(rank_)));
    memories_ = std::make_shared<HostMemories>(layout_, rank_);
    local_ =
        shm::make_backend(group_peers, here, str(name_, "/host ", layout_.host(rank_)), options_);
    start(std::make_shared<HierarchicalTransport>(Levels{
        group_peers, local_,
        mpi::make_backend(group_peers, runtime_, across,
                          str(name_, "/across hosts ", layout_.local(rank_)), patient(options_)),
        memories_, meter_, layout_, name_, rank_}));
  }

  std::string kind() const override { return "two-level"; }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    agree_on_size(bytes);
    return memories_->add(local_->symmetric(bytes));
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    std::vector<int> home;
    for (const int member : members) {
      const auto same = [&](int other) {
        return home_[static_cast<std::size_t>(other)] == home_[static_cast<std::size_t>(member)];
      };
      home.push_back(
          static_cast<int>(std::find_if(members.begin(), members.end(), same) - members.begin()));
    }
    const Layout layout = find_layout(home, name);
    std::vector<int> ranks = job_ranks(members);
    if (layout.hosts == 1) return shm::make_backend(peers_, std::move(ranks), name, options_);
    if (layout.per_host == 1) {
      return mpi::make_backend(peers_, runtime_, std::move(ranks), name, options_);
    }
    return hierarchical::make_backend(peers_, runtime_, std::move(ranks), std::move(name),
                                      options_);
  }

 private:
  Work submit_message(Collective call, Attachments attachments) override {
    if (layout_.host(call.peer) != layout_.host(rank_)) {
      return remote_->submit(std::move(call), std::move(attachments));
    }
    call.peer = layout_.local(call.peer);
    return local_->submit(std::move(call), std::move(attachments));
  }

  int member(int host, int local) const {
    return members_[static_cast<std::size_t>(layout_.rank(host, local))];
  }

  // The first rank of the group on each rank's host. A rank knows only who is on its own.
  std::vector<int> find_homes() const {
    const auto here = [&](int other) { return peers_->same_host(other); };
    const std::int32_t own = static_cast<std::int32_t>(
        std::find_if(members_.begin(), members_.end(), here) - members_.begin());
    std::vector<std::int32_t> all(members_.size());
    remote_
        ->submit({Op::all_gather, DType::i32, ReduceOp::sum, Traffic::control, &own, all.data(),
                  all.size(), -1, "hosts"})
        .wait();
    return {all.begin(), all.end()};
  }

  const std::shared_ptr<mpi::Runtime> runtime_;
  std::shared_ptr<Backend> remote_;  // messages to ranks on other hosts
  std::vector<int> home_;
  Layout layout_;
  std::shared_ptr<HostMemories> memories_;
  std::shared_ptr<Backend> local_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers,
                                      std::shared_ptr<mpi::Runtime> runtime,
                                      std::vector<int> members, std::string name,
                                      GroupOptions options) {
  return std::make_shared<HierarchicalBackend>(std::move(peers), std::move(runtime),
                                               std::move(members), std::move(name), options);
}

}  // namespace tessera::comm::hierarchical
