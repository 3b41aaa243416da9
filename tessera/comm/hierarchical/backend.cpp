#include "tessera/comm/hierarchical/backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/comm/hierarchical/transport.h"
#include "tessera/comm/queued_backend.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::hierarchical {
namespace {

using std::chrono::seconds;

// Returns the options for levels between hosts, with a longer timeout. The ranks of its own host
// should notice a stopped rank first, because they can name it; other hosts only notice that its
// host is late.
GroupOptions patient(GroupOptions options) {
  options.timeout += std::max<std::chrono::milliseconds>(seconds(1), options.timeout / 10);
  return options;
}

// Returns, for each rank, the first rank of the group on its host. Collective over `all`, because a
// rank can only tell which ranks are on its own host.
std::vector<int> find_homes(const Peers& peers, const std::vector<int>& members, Backend& all) {
  const auto here = [&](int other) { return peers.same_host(other); };
  const std::int32_t own = static_cast<std::int32_t>(
      std::find_if(members.begin(), members.end(), here) - members.begin());
  std::vector<std::int32_t> homes(members.size());
  all.submit({Op::all_gather, DType::i32, ReduceOp::sum, Traffic::control, &own, homes.data(),
              homes.size(), -1, "hosts"})
      .wait();
  return {homes.begin(), homes.end()};
}

// Makes the backend for ranks whose hosts are known. Not collective by itself.
std::shared_ptr<Backend> make_for(std::shared_ptr<Peers> peers, MakeInterHost make_inter_host,
                                  std::vector<int> members, std::vector<int> home, std::string name,
                                  GroupOptions options);

class HierarchicalBackend final : public QueuedBackend {
 public:
  HierarchicalBackend(std::shared_ptr<Peers> peers, MakeInterHost make_inter_host,
                      std::vector<int> members, std::vector<int> home, const Layout& layout,
                      std::string name, GroupOptions options)
      : QueuedBackend(std::move(peers), std::move(members), std::move(name), options),
        make_inter_host_(std::move(make_inter_host)),
        home_(std::move(home)),
        layout_(layout) {
    const auto group_peers = std::make_shared<GroupPeers>(peers_);
    remote_ = make_inter_host_(group_peers, members_, name_ + "/all", patient(options_));
    std::vector<int> here, across;
    for (int l = 0; l < layout_.per_host; ++l) here.push_back(member(layout_.host(rank_), l));
    for (int h = 0; h < layout_.hosts; ++h) across.push_back(member(h, layout_.local(rank_)));
    memories_ = std::make_shared<HostMemories>(layout_, rank_);
    local_ =
        shm::make_backend(group_peers, here, str(name_, "/host ", layout_.host(rank_)), options_);
    start(std::make_shared<HierarchicalTransport>(Levels{
        group_peers, local_,
        make_inter_host_(group_peers, across, str(name_, "/across hosts ", layout_.local(rank_)),
                         patient(options_)),
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
    return make_for(peers_, make_inter_host_, job_ranks(members), std::move(home), std::move(name),
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

  const MakeInterHost make_inter_host_;
  const std::vector<int> home_;
  const Layout layout_;
  std::shared_ptr<Backend> remote_;  // for messages to ranks on other hosts
  std::shared_ptr<HostMemories> memories_;
  std::shared_ptr<Backend> local_;
};

std::shared_ptr<Backend> make_for(std::shared_ptr<Peers> peers, MakeInterHost make_inter_host,
                                  std::vector<int> members, std::vector<int> home, std::string name,
                                  GroupOptions options) {
  const Layout layout = find_layout(home, name);
  if (layout.hosts == 1) {
    return shm::make_backend(std::move(peers), std::move(members), std::move(name), options);
  }
  if (layout.per_host == 1) {
    return make_inter_host(std::move(peers), std::move(members), std::move(name), options);
  }
  return std::make_shared<HierarchicalBackend>(std::move(peers), std::move(make_inter_host),
                                               std::move(members), std::move(home), layout,
                                               std::move(name), options);
}

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, MakeInterHost make_inter_host,
                                      std::vector<int> members, std::string name,
                                      GroupOptions options) {
  std::vector<int> home = find_homes(
      *peers, members, *make_inter_host(peers, members, name + "/hosts", patient(options)));
  return make_for(std::move(peers), std::move(make_inter_host), std::move(members), std::move(home),
                  std::move(name), options);
}

}  // namespace tessera::comm::hierarchical
