#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {

// Maximum bytes per write.
inline constexpr std::int64_t kWriteBytes = std::int64_t{8} << 20;
// Minimum size of a buffer, which collects small tensors; see [Note: memory].
inline constexpr std::int64_t kLeastBufferBytes = std::int64_t{64} << 10;

// Returns a pointer to bytes [offset, offset + bytes) of a tensor, either in place or copied to
// `staging`. The range has whole elements and at most kWriteBytes. Called in ascending order.
using Source =
    std::function<const std::byte*(std::int64_t offset, std::int64_t bytes, std::byte* staging)>;
// A tensor to write.
struct Outgoing {
  TensorEntry entry;  // write_safetensors() sets the offsets
  Source source;
};

struct WrittenFile {
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  std::uint32_t header_checksum = 0;
  std::vector<std::vector<std::uint32_t>> checksums;  // [tensor][block]
};

// Writes a safetensors file sequentially and syncs it. Sorts the tensors by size of their type, the
// widest first, so that each is aligned to its elements. Holds at most two charged buffers.
WrittenFile write_safetensors(FileSystem& files, const std::string& path,
                              std::vector<Outgoing>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const Charge& charge = {});

}  // namespace tessera::checkpoint
