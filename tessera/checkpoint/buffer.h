#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {

// [Note: memory] In addition to the state, saving and loading hold two buffers each. A buffer is at
// most as large as the largest tensor that passes through it, and at most a few MiB. So the total
// is less than two units of a model and does not grow with the model.

// Charged memory that grows to the largest requested size. Aligned to pages for direct I/O.
class Buffer {
 public:
  explicit Buffer(const Charge& charge) : charge_(charge) {}
  std::byte* get(std::int64_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      charged_.reset();
      if (charge_) charged_ = charge_(bytes);
      memory_.reset(new (kAlign) std::byte[static_cast<std::size_t>(bytes)]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlign{kPageBytes};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlign); }
  };
  const Charge& charge_;
  std::shared_ptr<void> charged_;
  std::unique_ptr<std::byte[], Free> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace tessera::checkpoint
