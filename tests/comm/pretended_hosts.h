#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/forwarded_peers.h"

namespace tessera::comm::testing {

// Makes ranks of one machine appear to be on several: rank r on host[r]. Counts what this rank
// sends to other hosts.
class PretendedHosts final : public ForwardedPeers {
 public:
  PretendedHosts(std::shared_ptr<Peers> peers, std::vector<int> host)
      : ForwardedPeers(std::move(peers)), host_(std::move(host)) {}

  bool same_host(int other) const override {
    return host_[static_cast<std::size_t>(other)] == host_[static_cast<std::size_t>(rank())];
  }
  void send_note(int rank, const std::string& topic, const std::string& bytes) override {
    if (!same_host(rank)) sent_ += bytes.size();
    ForwardedPeers::send_note(rank, topic, bytes);
  }
  std::uint64_t bytes_to_other_hosts() const { return sent_; }

 private:
  const std::vector<int> host_;
  std::atomic<std::uint64_t> sent_{0};
};

inline std::shared_ptr<PretendedHosts> pretend_hosts(std::shared_ptr<Peers> peers, int per_host) {
  std::vector<int> host;
  for (int r = 0; r < peers->size(); ++r) host.push_back(r / per_host);
  return std::make_shared<PretendedHosts>(std::move(peers), std::move(host));
}

}  // namespace tessera::comm::testing
