#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/store.h"

namespace tessera::comm {

struct StoreClientOptions {
  std::vector<std::string> addresses;  // numeric, of the server
  int port = 0;
  std::string secret{};
  std::string run{};
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for the server to be there
};

// Joins the store of a StoreServer; waits until it is there. Throws UsageError when the two have
// different secrets. For one thread at a time.
std::shared_ptr<Store> connect_store(const StoreClientOptions& options);

}  // namespace tessera::comm
