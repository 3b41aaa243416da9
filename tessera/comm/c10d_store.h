#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/comm/store.h"

namespace tessera::comm {

// Joins a store of c10d, as the agent of a torchrun hosts it. It asks nobody who he is: use it
// through make_sealed_store(). Waits until it is there.
std::shared_ptr<Store> connect_c10d_store(const std::string& address, int port,
                                          std::chrono::milliseconds timeout);

}  // namespace tessera::comm
