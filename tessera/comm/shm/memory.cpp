#include "tessera/comm/shm/memory.h"

#include <functional>
#include <utility>

#include "tessera/comm/segment_memory.h"

namespace tessera::comm::shm {

class MemoryTable::Memory final : public SegmentMemory {
 public:
  Memory(std::shared_ptr<MemoryTable> table, std::uint32_t number, std::shared_ptr<Segment> segment,
         std::size_t stride)
      : SegmentMemory(std::move(segment), stride), table_(std::move(table)), number_(number) {}
  ~Memory() override { table_->remove(number_); }

 private:
  const std::shared_ptr<MemoryTable> table_;
  const std::uint32_t number_;
};

std::uint32_t MemoryTable::next_number() {
  std::lock_guard lock(mutex_);
  return ++last_;
}

std::shared_ptr<SymmetricMemory> MemoryTable::add(std::uint32_t number,
                                                  std::shared_ptr<Segment> segment,
                                                  std::size_t stride) {
  auto memory = std::make_shared<Memory>(shared_from_this(), number, segment, stride);
  std::lock_guard lock(mutex_);
  entries_[number] = {segment->data(), stride};
  return memory;
}

void MemoryTable::remove(std::uint32_t number) {
  std::lock_guard lock(mutex_);
  entries_.erase(number);
}

Address MemoryTable::address(const void* pointer, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(pointer);
  std::lock_guard lock(mutex_);
  for (const auto& [number, entry] : entries_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(entry.base) +
                       static_cast<std::size_t>(rank_) * entry.stride;
    if (at >= begin && at - begin + bytes <= entry.stride) return {number, at - begin};
  }
  return {};
}

std::byte* MemoryTable::resolve(const Address& address, int owner) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(address.memory);
  if (found == entries_.end()) return nullptr;
  return found->second.base + static_cast<std::size_t>(owner) * found->second.stride +
         address.offset;
}

}  // namespace tessera::comm::shm
