#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::data {

// Bytes of a file, mapped read-only and shared between the processes of a machine.
class MappedFile {
 public:
  MappedFile() = default;
  // Maps the file of `fd`. `path` names it in errors. Throws DataError.
  MappedFile(const Fd& fd, const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::uint64_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Maps a file of an untrusted folder: a regular file, not a link (see [Note: no links] in
// checkpoint/file_system.h). Throws DataError.
MappedFile map_file_of_folder(const std::string& path);

}  // namespace tessera::data
