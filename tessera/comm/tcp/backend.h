#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::tcp {

// Makes a backend for ranks on any hosts. Data is sent as notes over control
// connections. Up to 16 KiB are sent along the [Note: control graph]; for larger buffers every rank
// sends to every other. Unsent data is kept in memory, so a buffer may have at most kMaxBytes.
// Sums have the same bits as with shm.
inline constexpr std::size_t kMaxBytes = std::size_t{256} << 20;
std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, std::vector<int> members,
                                      std::string name, GroupOptions options);

}  // namespace tessera::comm::tcp
