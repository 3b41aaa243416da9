#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/comm/backend.h"
#include "tessera/comm/hierarchical/layout.h"

namespace tessera::comm::hierarchical {

// Location of a buffer: `offset` in its owner's part of symmetric memory number `memory`. If
// `memory` is 0, the buffer is in private memory, which peers cannot access.
struct Address {
  std::uint64_t memory = 0;
  std::uint64_t offset = 0;
};

// Symmetric memories of a hierarchical group. The ranks of a host have mapped each other's parts,
// but not those of other hosts.
class HostMemories : public std::enable_shared_from_this<HostMemories> {
 public:
  HostMemories(Layout layout, int rank) : layout_(layout), rank_(rank) {}

  // Registers memory under the next number. Allocations are collective, so a number means the same
  // memory on every rank.
  std::shared_ptr<SymmetricMemory> add(std::shared_ptr<SymmetricMemory> local);

  // Returns the location of [pointer, pointer + bytes) if all of it is in this rank's own part,
  // otherwise {}.
  Address address(const void* pointer, std::size_t bytes) const;

  // Returns the pointer in this process for `address` of local rank `local` of this host; null if
  // this rank has released the memory.
  const std::byte* resolve(const Address& address, int local) const;

 private:
  class Memory;
  void remove(std::uint64_t number);

  const Layout layout_;
  const int rank_;
  mutable std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<SymmetricMemory>> memories_;
};

}  // namespace tessera::comm::hierarchical
