#include "tessera/comm/shm/backend.h"

#include <unistd.h>

#include <utility>

#include "tessera/comm/queued_backend.h"
#include "tessera/comm/segment_memory.h"
#include "tessera/comm/shm/point_to_point.h"
#include "tessera/comm/shm/transport.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::shm {
namespace {

// With a core for every rank, a peer arrives within microseconds, so spinning pays off. With fewer
// cores the peer may need this core: sleep immediately.
std::chrono::nanoseconds spin_budget(const GroupOptions& options, int ranks) {
  if (options.spin.count() >= 0) return options.spin;
  const bool core_each = ranks <= sysconf(_SC_NPROCESSORS_ONLN);
  return std::chrono::microseconds(core_each ? 30 : 0);
}

class ShmBackend final : public QueuedBackend {
 public:
  ShmBackend(std::shared_ptr<Peers> peers, std::vector<int> members, std::string name,
             GroupOptions options)
      : QueuedBackend(std::move(peers), std::move(members), std::move(name), options),
        memories_(std::make_shared<MemoryTable>(rank_)) {
    for (const int member : members_) {
      if (peers_->same_host(member)) continue;
      throw UsageError(str("group ", name_, " over shm: rank ", member,
                           " is not on the same host as rank ", peers_->rank(),
                           "; use backend two-level or tcp"));
    }
    const auto control = peers_->share(name_, members_, ControlSegment::bytes(size()),
                                       Pages::when_touched, options.timeout);
    const GroupState group(control, memories_, liveness_, meter_, rank_, size(),
                           spin_budget(options, size()), options.link);
    start(std::make_shared<ShmTransport>(group), std::make_shared<ShmPointToPoint>(group));
  }

  std::string kind() const override { return "shm"; }
  bool shares_memory() const override { return true; }
  bool takes_parts() const override { return true; }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    agree_on_size(bytes);
    const std::uint32_t number = memories_->next_number();
    const std::size_t stride = SegmentMemory::stride(bytes);
    auto segment =
        peers_->share(str(name_, ":memory", number), members_,
                      stride * static_cast<std::size_t>(size()), Pages::reserved, options_.timeout);
    return memories_->add(number, std::move(segment), stride);
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    return make_backend(peers_, job_ranks(members), std::move(name), options_);
  }

 private:
  const std::shared_ptr<MemoryTable> memories_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, std::vector<int> members,
                                      std::string name, GroupOptions options) {
  return std::make_shared<ShmBackend>(std::move(peers), std::move(members), std::move(name),
                                      options);
}

}  // namespace tessera::comm::shm
