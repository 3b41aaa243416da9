#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/shm/control.h"

namespace tessera::comm::shm {

// Symmetric memories of one group that one rank has mapped. They are numbered in the order of the
// (collective) allocations, so a number means the same memory on every rank.
class MemoryTable : public std::enable_shared_from_this<MemoryTable> {
 public:
  explicit MemoryTable(int rank) : rank_(rank) {}

  std::uint32_t next_number();
  std::shared_ptr<SymmetricMemory> add(std::uint32_t number, std::shared_ptr<Segment> segment,
                                       std::size_t stride);

  // Returns the location of [pointer, pointer + bytes) if all of it is in this rank's own part,
  // otherwise {}.
  Address address(const void* pointer, std::size_t bytes) const;

  // Returns the pointer in this process for `address` of rank `owner`; null if this rank has
  // released the memory.
  std::byte* resolve(const Address& address, int owner) const;

 private:
  class Memory;
  struct Entry {
    std::byte* base;
    std::size_t stride;
  };
  void remove(std::uint32_t number);

  const int rank_;
  mutable std::mutex mutex_;
  std::uint32_t last_ = 0;
  std::map<std::uint32_t, Entry> entries_;
};

}  // namespace tessera::comm::shm
