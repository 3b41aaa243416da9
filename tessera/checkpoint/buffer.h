#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {

// [Note: memory] Besides the state itself, saving holds two buffers and loading two, none larger
// than the largest tensor that passes through it or than a few MiB: less than two units of a model,
// and never a part of the state that grows with the model.

// Memory that is there when it is wanted, as large as anything wanted it, and charged. Aligned, so
// that the kernel can take whole pages of it.
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
