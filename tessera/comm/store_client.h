#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/join_notice.h"
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
  std::chrono::milliseconds notice = JoinNotice::kFirst;        // of waiting, before it is reported
};

// Joins the store of a StoreServer; waits until it is there. Throws UsageError when the two have
// different secrets. For one thread at a time.
std::shared_ptr<Store> connect_store(const StoreClientOptions& options);

}  // namespace tessera::comm
