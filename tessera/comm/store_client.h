#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/join_notice.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

struct StoreClientOptions {
  std::vector<std::string> addresses;  // numeric addresses of the server
  int port = 0;
  std::string secret{};                                         // of the job
  std::string run{};                                            // identifies the run
  int rank = 0;                                                 // of the caller
  int size = 1;                                                 // ranks of the job
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for connecting to the server
  std::chrono::milliseconds notice = JoinNotice::kFirst;        // wait before the first report
};

// Connects to the store of a StoreServer. Waits until it is reachable. Throws UsageError if the
// secrets differ. The result may be used by one thread at a time.
std::shared_ptr<Store> connect_store(const StoreClientOptions& options);

}  // namespace tessera::comm
