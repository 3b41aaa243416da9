#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

// Device blocks allocated in a counting scope, and the ledgers they are charged to. Needed because
// the thread that frees a block may be in a different scope than the one that allocated it.
// Thread-safe.
class DeviceBlocks {
 public:
  // Charges a block. A block that was freed outside any scope is still recorded when its address is
  // used again: its charge ends then.
  void take(const void* block, std::shared_ptr<Ledger> ledger, MemoryCategory category,
            std::int64_t bytes);
  // Releases the charge of a block. Ignores unknown blocks.
  void give(const void* block);

 private:
  struct Entry {
    std::shared_ptr<Ledger> ledger;
    MemoryCategory category = MemoryCategory::temporary;
    std::int64_t bytes = 0;
  };
  std::mutex mutex_;
  std::unordered_map<const void*, Entry> blocks_;
};

}  // namespace tessera::memory
