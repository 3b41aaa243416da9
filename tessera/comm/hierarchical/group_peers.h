#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/comm/forwarded_peers.h"

namespace tessera::comm::hierarchical {

// Peers as used by the levels of one hierarchical group. The group can stop its levels without
// failing the job, and their failure reports name the group's call that they were part of.
class GroupPeers final : public ForwardedPeers {
 public:
  using ForwardedPeers::ForwardedPeers;

  void report(const Failure& failure) override {
    Failure full = failure;
    full.text += context();
    ForwardedPeers::report(full);
  }
  std::optional<Failure> failure() const override {
    if (given_up_.load()) {
      return Failure{Failure::Kind::peer, -1, rank(), "stopped because the group was destroyed"};
    }
    return ForwardedPeers::failure();
  }

  void give_up() noexcept { given_up_.store(true); }

  // Sets the text appended to errors: "" or ", during #3 all_reduce(…) of group world".
  void set_context(std::string text) {
    std::lock_guard lock(mutex_);
    context_ = std::move(text);
  }
  std::string context() const {
    std::lock_guard lock(mutex_);
    return context_;
  }

 private:
  std::atomic<bool> given_up_{false};
  mutable std::mutex mutex_;
  std::string context_;
};

}  // namespace tessera::comm::hierarchical
