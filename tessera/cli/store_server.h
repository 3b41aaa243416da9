#pragma once

#include <memory>

namespace tessera::cli {

// The store through which the ranks of a run find each other: c10d's TCPStore, served by a thread
// of this process until the object goes.
class StoreServer {
 public:
  // With `only_here` it listens on 127.0.0.1 only, so that nobody on the network can reach it; port
  // 0 takes a free one. Throws UsageError when the port is taken.
  StoreServer(bool only_here, int port);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }

 private:
  struct Store;  // keeps torch's headers out of this one
  std::unique_ptr<Store> store_;
  int port_ = 0;
};

}  // namespace tessera::cli
