#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/comm/backend.h"
#include "tessera/comm/hierarchical/layout.h"

namespace tessera::comm::hierarchical {

// Where a buffer lies: in symmetric memory `memory` at `offset` of its owner's part, or, if
// `memory` is 0, where no other rank can reach it.
struct Address {
  std::uint64_t memory = 0;
  std::uint64_t offset = 0;
};

// The symmetric memories of a hierarchical group: the ranks of a host have mapped one another's
// parts, those of other hosts are out of reach.
class HostMemories : public std::enable_shared_from_this<HostMemories> {
 public:
  HostMemories(Layout layout, int rank) : layout_(layout), rank_(rank) {}

  // Numbers count the (collective) allocations, so they mean the same on every rank.
  std::shared_ptr<SymmetricMemory> add(std::shared_ptr<SymmetricMemory> local);

  // The address of [pointer, pointer + bytes) if all of it lies in this rank's own part.
  Address address(const void* pointer, std::size_t bytes) const;

  // Where `address` of number `local` on this host lies here; null if this rank has released it.
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
