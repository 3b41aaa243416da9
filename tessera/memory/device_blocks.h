#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

// Blocks of a device that were handed out while somebody counted, and to whom they are charged: the
// thread that frees one is in another scope than the one that asked for it. From any thread.
class DeviceBlocks {
 public:
  // A block that was freed where nobody counted is found here when its place is used again: its
  // charge ends then.
  void take(const void* block, std::shared_ptr<Ledger> ledger, MemoryCategory category,
            std::int64_t bytes);
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
