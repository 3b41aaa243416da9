#pragma once

// What the test programs that mpirun starts share: the job, as a bootstrap would set it up.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/forwarded_peers.h"
#include "tessera/comm/mpi/backend.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/secret.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/socket_peers.h"
#include "tests/comm/file_store.h"

namespace tessera::comm::testing {

struct World {
  std::shared_ptr<mpi::Runtime> runtime;
  std::shared_ptr<Peers> peers;
  GroupOptions options;

  int rank() const { return runtime->rank(); }
  int size() const { return runtime->size(); }
  std::vector<int> everybody() const {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::shared_ptr<Backend> group(const std::string& name) const {
    return mpi::make_backend(peers, runtime, everybody(), name, options);
  }
};

inline World join_world() {
  World world;
  world.runtime = mpi::Runtime::start();
  std::string folder;
  if (world.rank() == 0) {
    char name[] = "/tmp/tessera-mpi-test-XXXXXX";
    if (mkdtemp(name) != nullptr) folder = name;
  }
  folder = world.runtime->broadcast_string(folder, 0);
  const auto store = make_file_store(folder);
  PeersOptions options;
  options.secret = world.runtime->broadcast_string(random_secret(), 0);
  options.run = folder;
  const std::vector<std::string> addresses = own_addresses();
  if (!addresses.empty()) options.address = addresses.front();
  world.peers = connect_peers(*store, world.rank(), world.size(), options);
  world.runtime->all_gather_strings("");  // all have read what they need
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  world.options.timeout = std::chrono::seconds(30);
  return world;
}

// Ranks of one machine that believe to be on several: rank r on host[r].
class PretendedHosts final : public ForwardedPeers {
 public:
  PretendedHosts(std::shared_ptr<Peers> peers, std::vector<int> host)
      : ForwardedPeers(std::move(peers)), host_(std::move(host)) {}
  bool same_host(int other) const override {
    return host_[static_cast<std::size_t>(other)] == host_[static_cast<std::size_t>(rank())];
  }

 private:
  const std::vector<int> host_;
};

inline std::shared_ptr<Peers> pretend_hosts(std::shared_ptr<Peers> peers, int per_host) {
  std::vector<int> host;
  for (int r = 0; r < peers->size(); ++r) host.push_back(r / per_host);
  return std::make_shared<PretendedHosts>(std::move(peers), std::move(host));
}

// Rank 0 prints as usual, the others only what went wrong.
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_,
                 result.file_name() != nullptr ? result.file_name() : "?", result.line_number(),
                 result.message());
  }

 private:
  int rank_;
};

inline int run_tests(int rank) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  return RUN_ALL_TESTS();
}

}  // namespace tessera::comm::testing
