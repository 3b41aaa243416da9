#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/peers.h"

namespace tessera::comm {

// Checks of a rank that waits for another member of its group: whether the job has failed, a member
// has died, or the timeout has passed. One per group. Thread-safe.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  Liveness(std::shared_ptr<Peers> peers, std::vector<int> members, std::string group,
           std::chrono::milliseconds timeout);

  // Throws if rank `awaited` of the group, awaited since `since`, must not be awaited any longer.
  // `doing` returns the name of the operation. `arrived` is called again after a member was found
  // gone, because the member may have done its part before. `extra` is added to the timeout.
  void check(int awaited, Clock::time_point since, const std::function<std::string()>& doing,
             const std::function<bool()>& arrived, std::chrono::milliseconds extra = {}) const;

  // Throws the failure of the job, if it has failed. For operations that have not begun.
  void check_failure(const std::function<std::string()>& doing) const;

  // Reports the failure to every rank and throws it.
  [[noreturn]] void fail(Failure::Kind kind, int culprit, const std::string& text) const;

  void abandon() noexcept { abandoned_.store(true); }

  Peers& peers() const noexcept { return *peers_; }
  const std::vector<int>& members() const noexcept { return members_; }
  const std::string& group() const noexcept { return group_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

 private:
  bool is_near(int awaited) const;

  std::shared_ptr<Peers> peers_;
  std::vector<int> members_;  // ranks of the job, by rank of the group
  std::string group_;
  std::chrono::milliseconds timeout_;
  std::atomic<bool> abandoned_{false};
};

}  // namespace tessera::comm
