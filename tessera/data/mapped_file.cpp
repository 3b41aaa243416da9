#include "tessera/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"

namespace tessera::data {

MappedFile::MappedFile(const Fd& fd, const std::string& path) {
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) {
    throw DataError(str("cannot stat ", quote(path), ": ", std::strerror(errno)));
  }
  size_ = static_cast<std::size_t>(about.st_size);
  if (size_ == 0) return;
  void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    throw DataError(str("cannot map ", quote(path), ": ", std::strerror(errno)));
  }
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile map_file_of_folder(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.open() && errno == ELOOP) {
    throw DataError(str(quote(path),
                        " is a symbolic link. The files of a token folder must be regular files: "
                        "copy the file into the folder."));
  }
  if (!fd.open()) {
    throw DataError(str("cannot open ", quote(path), ": ", std::strerror(errno),
                        ". The folder is incomplete: copy it again, or prepare it again."));
  }
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    throw DataError(
        str(quote(path), " is ", kind_of_file(about.st_mode), ", must be a regular file"));
  }
  return MappedFile(fd, path);
}

}  // namespace tessera::data
