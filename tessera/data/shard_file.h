#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::data {

// What a direct write takes: addresses, offsets and sizes are multiples of it. Not less than a
// page, which is 64 KiB on some machines: a page that is written through the cache at one end must
// not be written around it at the other by somebody else.
inline std::size_t direct_block() {
  return std::max<std::size_t>(4096, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

// Memory that a thread puts what it writes into, at an address that is a multiple of
// direct_block(), as its size must be.
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

// [Note: around the page cache] The kernel takes 1 to 3 ns for each byte that it copies into its
// pages and sends on to the disk from there, many times what making the tokens takes. Large parts
// therefore go to the disk from where they lie (O_DIRECT). What does not fill a block at either end
// of a part goes through the pages, which the kernel keeps in step. Where a file system has no such
// writes, all goes through the pages.

// A file of a shard, which grows. Throws DataError.
class ShardFile {
 public:
  // Made anew where `bytes` is 0, else as it was when it had so many, with this checksum.
  void open(std::string path, std::uint64_t bytes, std::uint32_t crc, bool direct = false);
  // Through the page cache. `hurry`: it begins its way to the disk now.
  void write(std::uint64_t offset, const void* data, std::size_t bytes, bool hurry = true) const;
  bool direct() const { return direct_.open(); }
  // Around it: all three are multiples of direct_block().
  void write_direct(std::uint64_t offset, const void* data, std::size_t bytes) const;
  // Makes room up to `bytes`, in large steps: writes that do not make a file longer do not wait for
  // each other. Only where it is direct; one call at a time.
  void reserve(std::uint64_t bytes);
  // It has so many bytes, and no room behind them.
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
