#include "tessera/data/shard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/data/mapped_file.h"

namespace tessera::data {
namespace {

constexpr std::uint64_t kReserveStep = std::uint64_t{64} << 20;

// Returns false with errno set on failure; `bytes` is then what is left.
bool write_at(int fd, const std::byte*& from, std::uint64_t& offset, std::size_t& bytes) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    from += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

WriteBuffer::WriteBuffer(std::size_t bytes)
    : data_(static_cast<std::byte*>(std::aligned_alloc(direct_block(), bytes))), size_(bytes) {
  if (!data_) throw std::bad_alloc();
}

void WriteBuffer::Free::operator()(std::byte* data) const { std::free(data); }

void ShardFile::fail(const char* what) const {
  const int error = errno;
  throw DataError(
      str("cannot ", what, " ", quote(path_), ": ", std::strerror(error), advice_on(error)));
}

void ShardFile::check(std::uint64_t bytes, std::uint32_t crc) const {
  const MappedFile mapped(fd_, path_);
  const std::string what = ". Start over with --restart.";
  if (mapped.size() < bytes) {
    throw DataError(str(quote(path_), " has ", mapped.size(), " bytes, expected at least the ",
                        bytes, " that were written before prepare stopped", what));
  }
  const std::uint32_t got = checkpoint::crc32c(mapped.bytes().data(), bytes);
  if (got != crc) {
    throw DataError(str(quote(path_), " has the checksum ", checkpoint::to_hex({got}),
                        " up to byte ", bytes, ", expected ", checkpoint::to_hex({crc}),
                        ": it was changed since prepare stopped", what));
  }
}

void ShardFile::open(std::string path, std::uint64_t bytes, std::uint32_t crc, bool direct) {
  path_ = std::move(path);
  const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (bytes == 0 ? O_CREAT | O_TRUNC : 0);
  fd_ = Fd(::open(path_.c_str(), flags, 0666));
  if (!fd_.open()) fail("open");
  if (bytes > 0) {
    check(bytes, crc);
    cut(bytes);
  }
  if (direct) direct_ = Fd(::open(path_.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_DIRECT));
}

void ShardFile::write(std::uint64_t offset, const void* data, std::size_t bytes, bool hurry) const {
  const auto* from = static_cast<const std::byte*>(data);
  const std::uint64_t begin = offset;
  if (!write_at(fd_.get(), from, offset, bytes)) fail("write");
  // Shortens a later sync(). Only a hint.
  if (hurry && offset > begin) {
    (void)::sync_file_range(fd_.get(), static_cast<off_t>(begin),
                            static_cast<off_t>(offset - begin), SYNC_FILE_RANGE_WRITE);
  }
}

void ShardFile::write_direct(std::uint64_t offset, const void* data, std::size_t bytes) const {
  const auto* from = static_cast<const std::byte*>(data);
  if (write_at(direct_.get(), from, offset, bytes)) return;
  // The disk has larger blocks, or a write ended inside one.
  if (errno != EINVAL) fail("write");
  write(offset, from, bytes);
}

void ShardFile::reserve(std::uint64_t bytes) {
  while (direct() && reserved_ < bytes) {
    const bool done = ::fallocate(fd_.get(), 0, static_cast<off_t>(reserved_),
                                  static_cast<off_t>(kReserveStep)) == 0;
    // Not every file system supports it, and a full disk may still have room for the data.
    reserved_ = done ? reserved_ + kReserveStep : std::numeric_limits<std::uint64_t>::max();
  }
}

void ShardFile::cut(std::uint64_t bytes) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) fail("truncate");
  reserved_ = bytes;
}

void ShardFile::sync() const {
  if (fd_.open() && ::fdatasync(fd_.get()) != 0) fail("sync");
}

}  // namespace tessera::data
