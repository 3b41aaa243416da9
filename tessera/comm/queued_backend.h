#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/liveness.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/point_to_point_queue.h"
#include "tessera/comm/queue.h"

namespace tessera::comm {

// Base of the backends for host memory. Its members are ranks of a job; it has one queue for
// collectives and one for sends and receives. Derived classes provide the transports.
class QueuedBackend : public Backend {
 public:
  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(members_.size()); }
  std::string name() const final { return name_; }
  TrafficCounts traffic() const final { return meter_->counts(); }
  void add_traffic(const TrafficCounts& counts) final { meter_->add(counts); }
  Work submit(Collective call, Attachments attachments) final;

 protected:
  // `members` are ranks of the job. Throws UsageError if the caller is not one of them.
  QueuedBackend(std::shared_ptr<Peers> peers, std::vector<int> members, std::string name,
                GroupOptions options);

  // Called once, at the end of construction. Operations may use only state that the transports own,
  // because members of derived classes are destroyed before the queues end.
  void start(std::shared_ptr<Transport> collectives,
             std::shared_ptr<PointToPointTransport> messages);
  void start(std::shared_ptr<Transport> collectives);  // for classes that override submit_message()

  // Submits a send or a receive that was already checked and counted.
  virtual Work submit_message(Collective call, Attachments attachments);

  // Throws on every rank, before memory is mapped, if the ranks pass different sizes.
  void agree_on_size(std::size_t bytes);

  // Converts ranks of this group to ranks of the job.
  std::vector<int> job_ranks(std::span<const int> members) const;

  const std::shared_ptr<Peers> peers_;
  const std::vector<int> members_;
  const std::string name_;
  const GroupOptions options_;
  const int rank_;
  const std::shared_ptr<TrafficMeter> meter_;
  const std::shared_ptr<Liveness> liveness_;

 private:
  std::optional<Queue> collectives_;
  std::optional<PointToPointQueue> messages_;
};

}  // namespace tessera::comm
