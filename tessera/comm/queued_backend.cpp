#include "tessera/comm/queued_backend.h"

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

int position(const Peers& peers, const std::vector<int>& members, const std::string& name) {
  const auto found = std::find(members.begin(), members.end(), peers.rank());
  if (found == members.end()) {
    throw UsageError(str("rank ", peers.rank(), " is not a member of group ", name));
  }
  return static_cast<int>(found - members.begin());
}

}  // namespace

QueuedBackend::QueuedBackend(std::shared_ptr<Peers> peers, std::vector<int> members,
                             std::string name, GroupOptions options)
    : peers_(std::move(peers)),
      members_(std::move(members)),
      name_(std::move(name)),
      options_(options),
      rank_(position(*peers_, members_, name_)),
      meter_(std::make_shared<TrafficMeter>()),
      liveness_(std::make_shared<Liveness>(peers_, members_, name_, options.timeout)) {}

void QueuedBackend::start(std::shared_ptr<Transport> collectives) {
  collectives_.emplace(std::move(collectives), name_);
}

void QueuedBackend::start(std::shared_ptr<Transport> collectives,
                          std::shared_ptr<PointToPointTransport> messages) {
  start(std::move(collectives));
  messages_.emplace(std::move(messages), size());
}

Work QueuedBackend::submit(Collective call, Attachments attachments) {
  check(call, size(), rank_);
  meter_->charge(call, size(), rank_);
  if (is_point_to_point(call.op)) return submit_message(std::move(call), std::move(attachments));
  return collectives_->submit(std::move(call), std::move(attachments));
}

Work QueuedBackend::submit_message(Collective call, Attachments attachments) {
  return messages_->submit(std::move(call), std::move(attachments));
}

void QueuedBackend::agree_on_size(std::size_t bytes) {
  Collective agree;
  agree.op = Op::barrier;
  agree.count = bytes;
  agree.traffic = Traffic::control;
  agree.label = "symmetric memory";
  collectives_->submit(std::move(agree), {}).wait();
}

std::vector<int> QueuedBackend::job_ranks(std::span<const int> members) const {
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(members_.at(static_cast<std::size_t>(member)));
  return ranks;
}

}  // namespace tessera::comm
