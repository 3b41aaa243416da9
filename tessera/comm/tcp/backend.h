#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::tcp {

// Ranks on any hosts, without MPI: everything travels as notes over the control connections that
// the ranks have anyway. Made for what accompanies GPUs (agreements, losses, the shapes of things),
// not for the tensors of a model: a buffer may have kMostBytes, and every rank sends to every
// other. The bits are those of shm: sums in rank order.
inline constexpr std::size_t kMostBytes = std::size_t{64} << 20;
std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, std::vector<int> members,
                                      std::string name, GroupOptions options);

}  // namespace tessera::comm::tcp
