#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {

// What one write carries, at most.
inline constexpr std::int64_t kWriteBytes = std::int64_t{8} << 20;
// Small tensors are collected up to the size of the largest, or this; see [Note: memory].
inline constexpr std::int64_t kLeastBufferBytes = std::int64_t{64} << 10;

// Gives bytes [offset, offset + bytes) of a tensor, whole elements of it and at most kWriteBytes:
// either where they lie, or put into `staging`. Asked in order.
using Source =
    std::function<const std::byte*(std::int64_t offset, std::int64_t bytes, std::byte* staging)>;
struct Outgoing {
  TensorEntry entry;  // its offsets are filled in
  Source source;
};

struct WrittenFile {
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  std::uint32_t header_checksum = 0;
  std::vector<std::vector<std::uint32_t>> checksums;  // of each tensor, by block
};

// Writes a safetensors file from beginning to end, and syncs it. The file has the wider types
// first, so that each tensor is aligned to its elements. Holds at most two buffers, of which each
// is charged.
WrittenFile write_safetensors(FileSystem& files, const std::string& path,
                              std::vector<Outgoing>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const Charge& charge = {});

}  // namespace tessera::checkpoint
