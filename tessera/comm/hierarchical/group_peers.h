#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/comm/peers.h"

namespace tessera::comm::hierarchical {

// The peers as the levels of one hierarchical group see them: the group can stop its levels without
// ending the job, and what they report says which of its calls they were working for.
class GroupPeers final : public Peers {
 public:
  explicit GroupPeers(std::shared_ptr<Peers> peers) : peers_(std::move(peers)) {}

  int rank() const override { return peers_->rank(); }
  int size() const override { return peers_->size(); }
  bool same_host(int rank) const override { return peers_->same_host(rank); }
  PeerState state(int rank) const override { return peers_->state(rank); }

  void report(const Failure& failure) override {
    Failure full = failure;
    full.text += context();
    peers_->report(full);
  }
  std::optional<Failure> failure() const override {
    if (given_up_.load()) {
      return Failure{Failure::Kind::peer, -1, rank(), "given up because the group was destroyed"};
    }
    return peers_->failure();
  }
  std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                 std::size_t bytes, Pages pages,
                                 std::chrono::milliseconds timeout) override {
    return peers_->share(name, members, bytes, pages, timeout);
  }
  void send_note(int rank, const std::string& topic, const std::string& bytes) override {
    peers_->send_note(rank, topic, bytes);
  }
  std::optional<std::string> take_note(int rank, const std::string& topic) override {
    return peers_->take_note(rank, topic);
  }
  std::uint64_t notes_heard() const override { return peers_->notes_heard(); }
  void wait_for_notes(std::uint64_t seen, std::chrono::milliseconds longest) const override {
    peers_->wait_for_notes(seen, longest);
  }

  void give_up() noexcept { given_up_.store(true); }

  // What is added to errors: "" or ", for #3 all_reduce(…) of group world".
  void set_context(std::string text) {
    std::lock_guard lock(mutex_);
    context_ = std::move(text);
  }
  std::string context() const {
    std::lock_guard lock(mutex_);
    return context_;
  }

 private:
  const std::shared_ptr<Peers> peers_;
  std::atomic<bool> given_up_{false};
  mutable std::mutex mutex_;
  std::string context_;
};

}  // namespace tessera::comm::hierarchical
