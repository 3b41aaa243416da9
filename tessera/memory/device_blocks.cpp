#include "tessera/memory/device_blocks.h"

#include <utility>

namespace tessera::memory {

void DeviceBlocks::take(const void* block, std::shared_ptr<Ledger> ledger, MemoryCategory category,
                        std::int64_t bytes) {
  Entry before;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = blocks_[block];
    before = std::exchange(entry, {ledger, category, bytes});
  }
  if (before.ledger) before.ledger->release(before.category, before.bytes);
  ledger->note(category, bytes);
}

void DeviceBlocks::give(const void* block) {
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;  // allocated outside any scope
    entry = std::move(found->second);
    blocks_.erase(found);
  }
  entry.ledger->release(entry.category, entry.bytes);
}

}  // namespace tessera::memory
