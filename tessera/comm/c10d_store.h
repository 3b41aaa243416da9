#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/comm/store.h"

namespace tessera::comm {

// Connects to a c10d store, such as the one hosted by torchrun's agent. Waits until it is
// reachable. The store has no authentication, so wrap it in make_sealed_store().
std::shared_ptr<Store> connect_c10d_store(const std::string& address, int port,
                                          std::chrono::milliseconds timeout);

}  // namespace tessera::comm
