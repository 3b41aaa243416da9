#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/peers.h"

namespace tessera::comm {

// What a rank of a group looks at while it waits: has the job failed, has a member gone, is the
// deadline over? One per group; safe to use from several threads.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  Liveness(std::shared_ptr<Peers> peers, std::vector<int> members, std::string group,
           std::chrono::milliseconds timeout);

  // Throws if waiting any longer for rank `awaited` of the group makes no sense. `doing` names the
  // operation; `arrived` is asked again after a member was found gone, because it may have done its
  // part before it went.
  void check(int awaited, Clock::time_point since, const std::function<std::string()>& doing,
             const std::function<bool()>& arrived) const;

  // Throws what ended the job, if anything did: for an operation that has not begun.
  void check_failure(const std::function<std::string()>& doing) const;

  // Throws, after telling every rank that the job is over because of this.
  [[noreturn]] void fail(Failure::Kind kind, int culprit, const std::string& text) const;

  void abandon() noexcept { abandoned_.store(true); }

  Peers& peers() const noexcept { return *peers_; }
  const std::vector<int>& members() const noexcept { return members_; }
  const std::string& group() const noexcept { return group_; }

 private:
  std::shared_ptr<Peers> peers_;
  std::vector<int> members_;  // ranks of the job, by rank of the group
  std::string group_;
  std::chrono::milliseconds timeout_;
  std::atomic<bool> abandoned_{false};
};

}  // namespace tessera::comm
