#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::data {

// Alignment of direct writes: addresses, offsets and sizes are multiples of it. At least one page,
// which is 64 KiB on some machines: no page may be written through the cache at one end and around
// it at the other.
inline std::size_t direct_block() {
  return std::max<std::size_t>(4096, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

// Write buffer of one thread. Its address and size are multiples of direct_block().
class WriteBuffer {
 public:
  explicit WriteBuffer(std::size_t bytes = std::size_t{1} << 20);

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_;
};

// [Note: around the page cache] The kernel takes 1 to 3 ns per byte to copy data into its page
// cache and write it to disk from there, many times the cost of making the tokens. Large parts are
// therefore written directly from their buffers (O_DIRECT). The ends of a part that do not fill a
// block go through the page cache, which the kernel keeps coherent. On file systems without direct
// writes everything goes through the page cache.

// Growing file of a shard. Throws DataError.
class ShardFile {
 public:
  // Creates the file if `bytes` is 0, otherwise truncates it to `bytes` after checking their
  // checksum.
  void open(std::string path, std::uint64_t bytes, std::uint32_t crc, bool direct = false);
  // Writes through the page cache. `hurry`: starts writing to disk at once.
  void write(std::uint64_t offset, const void* data, std::size_t bytes, bool hurry = true) const;
  bool direct() const { return direct_.open(); }
  // Writes around the page cache; all three must be multiples of direct_block().
  void write_direct(std::uint64_t offset, const void* data, std::size_t bytes) const;
  // Allocates space up to `bytes` in large steps: writes that do not extend a file do not wait for
  // each other. Only for direct files; one call at a time.
  void reserve(std::uint64_t bytes);
  // Truncates the file to `bytes`, including reserved space.
  void cut(std::uint64_t bytes);
  void sync() const;

 private:
  [[noreturn]] void fail(const char* what) const;
  void check(std::uint64_t bytes, std::uint32_t crc) const;

  Fd fd_, direct_;
  std::string path_;
  std::uint64_t reserved_ = 0;
};

}  // namespace tessera::data
