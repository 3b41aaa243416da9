#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/core/state_layout.h"
#include "tessera/zero/buffers.h"

namespace tessera::zero {

// Contiguous bytes of a StateStorage.
struct ByteRange {
  std::int64_t offset = 0, bytes = 0;
};

// Bytes of the optimizer state of one rank, wherever they are stored. Initially zero. A placement
// is an implementation of this interface; its users do not know which.
class StateStorage {
 public:
  virtual ~StateStorage() = default;
  virtual void read(ByteRange from, std::byte* into) const = 0;
  virtual void write(ByteRange to, const std::byte* from) = 0;
  // Calls change(i, memory) for every range in order, on the calling thread, with the bytes of
  // ranges[i]. Changes to them are stored before this returns. Ranges do not overlap.
  virtual void update(const std::vector<ByteRange>& ranges,
                      const std::function<void(std::size_t, std::byte*)>& change) = 0;
};

// Makes the storage of `bytes` bytes. `largest`: bytes of the largest range of update(). Throws
// UsageError if the folder of the files cannot be used or has too little space.
std::unique_ptr<StateStorage> make_state_storage(StatePlacement placement, const std::string& dir,
                                                 std::int64_t bytes, std::int64_t largest,
                                                 const Buffers& buffers);

}  // namespace tessera::zero
