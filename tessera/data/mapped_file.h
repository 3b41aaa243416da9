#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::data {

// A file's bytes, mapped for reading: processes on one machine share them.
class MappedFile {
 public:
  MappedFile() = default;
  // The file that `fd` is; `path` names it in errors, which are DataErrors.
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

// A file of a folder that may come from anybody: a regular file, and no link (see [Note: no links]
// in checkpoint/files.h). Throws DataError.
MappedFile map_file_of_folder(const std::string& path);

}  // namespace tessera::data
