#pragma once

#include <memory>
#include <utility>

#include "tessera/comm/peers.h"

namespace tessera::comm {

// Peers that forward every call to others. Derived classes override some of them.
class ForwardedPeers : public Peers {
 public:
  explicit ForwardedPeers(std::shared_ptr<Peers> peers) : peers_(std::move(peers)) {}

  int rank() const override { return peers_->rank(); }
  int size() const override { return peers_->size(); }
  bool same_host(int rank) const override { return peers_->same_host(rank); }
  PeerState state(int rank) const override { return peers_->state(rank); }
  void watch(int rank) override { peers_->watch(rank); }
  void report(const Failure& failure) override { peers_->report(failure); }
  std::optional<Failure> failure() const override { return peers_->failure(); }
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

 private:
  const std::shared_ptr<Peers> peers_;
};

}  // namespace tessera::comm
