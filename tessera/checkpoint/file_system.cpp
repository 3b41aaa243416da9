#include "tessera/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/files.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw DataError(str("cannot ", what, " ", path, ": ", std::strerror(error), advice_on(error)));
}

[[noreturn]] void fail_to_read(const std::string& what, const std::string& path, int error) {
  std::string advice;
  if (error == EACCES || error == EPERM) advice = "; check its owner and permissions";
  if (error == EIO) advice = "; the disk or its network failed: use another copy";
  throw DataError(str("cannot ", what, " ", path, ": ", std::strerror(error), advice));
}

// Smaller files are not opened a second time with O_DIRECT.
constexpr std::int64_t kDirectBytes = std::int64_t{1} << 20;

class LocalFile : public File {
 public:
  // `direct`: opened with O_DIRECT, or closed.
  LocalFile(Fd fd, Fd direct, std::string path, bool writes)
      : fd_(std::move(fd)), direct_(std::move(direct)), path_(std::move(path)), writes_(writes) {}

  void write(std::int64_t offset, const std::byte* data, std::int64_t bytes) override {
    while (direct_.open() && bytes >= kPageBytes && in_pages(offset, data)) {
      const ssize_t n = ::pwrite(direct_.get(), data,
                                 static_cast<std::size_t>(bytes - bytes % kPageBytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL) direct_.reset();  // not supported for this file
      if (n < 0 && errno != EINVAL) fail_to_write(offset, bytes);
      data += std::max<ssize_t>(n, 0);
      offset += std::max<ssize_t>(n, 0);
      bytes -= std::max<ssize_t>(n, 0);
    }
    if (bytes == 0) return;
    const std::int64_t begin = offset;
    while (bytes > 0) {
      const ssize_t n = ::pwrite(fd_.get(), data, static_cast<std::size_t>(bytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_to_write(offset, bytes);
      data += n;
      offset += n;
      bytes -= n;
    }
    // Starts writing to the disk now, so that sync() has less to wait for. Only a hint.
    (void)::sync_file_range(fd_.get(), begin, offset - begin, SYNC_FILE_RANGE_WRITE);
  }

  void read(std::int64_t offset, std::byte* into, std::int64_t bytes) override {
    while (bytes > 0) {
      const ssize_t n = ::pread(fd_.get(), into, static_cast<std::size_t>(bytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_to_read(str("read ", bytes, " bytes at byte ", offset, " of"), path_, errno);
      if (n == 0) {
        throw DataError(str(path_, " ends at byte ", offset, ", but ", bytes,
                            " more were expected: it was truncated; use another copy"));
      }
      into += n;
      offset += n;
      bytes -= n;
    }
  }

  std::int64_t size() override {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) fail_to_read("inspect", path_, errno);
    return info.st_size;
  }

  void sync() override {
    if (writes_ && ::fsync(fd_.get()) != 0) fail("sync", path_, errno);
  }

 private:
  [[noreturn]] void fail_to_write(std::int64_t offset, std::int64_t bytes) const {
    fail(str("write ", bytes, " bytes at byte ", offset, " of"), path_, errno);
  }
  static bool in_pages(std::int64_t offset, const std::byte* data) {
    return offset % kPageBytes == 0 && reinterpret_cast<std::uintptr_t>(data) % kPageBytes == 0;
  }

  Fd fd_, direct_;
  std::string path_;
  bool writes_;
};

class LocalFiles : public FileSystem {
 public:
  std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.open()) fail("create", path, errno);
    // Not posix_fallocate, which writes zeros if the file system does not support it.
    if (bytes > 0 && ::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      const int error = errno;
      fd.reset();
      ::unlink(path.c_str());
      fail(str("reserve ", bytes, " bytes for"), path, error);
    }
    // Sets the final size, so that no write has to extend the file.
    if (::ftruncate(fd.get(), bytes) != 0) {
      const int error = errno;
      fd.reset();
      ::unlink(path.c_str());
      fail(str("allocate ", bytes, " bytes for"), path, error);
    }
    Fd direct;
    if (bytes >= kDirectBytes) direct = Fd(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
    return std::make_unique<LocalFile>(std::move(fd), std::move(direct), path, true);
  }

  std::unique_ptr<File> open(const std::string& path) override {
    // Does not block on a pipe and does not follow links: see [Note: no links].
    Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd.open() && errno == ELOOP) {
      throw DataError(
          str(path,
              " is a symbolic link; the files of a checkpoint must be regular files in its "
              "folder: copy the file there"));
    }
    struct stat info {};
    if (!fd.open()) {
      const int error = errno;
      if (error != ENXIO || ::lstat(path.c_str(), &info) != 0) fail_to_read("open", path, error);
    } else if (::fstat(fd.get(), &info) != 0) {
      fail_to_read("inspect", path, errno);
    }
    if (!S_ISREG(info.st_mode)) {
      throw DataError(str(path, " is ", kind_of_file(info.st_mode), "; must be a regular file"));
    }
    return std::make_unique<LocalFile>(std::move(fd), Fd(), path, false);
  }

  void make_folder(const std::string& path) override {
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (::mkdir(part.c_str(), 0777) == 0) {
        sync_parent(part);
      } else if (errno != EEXIST) {
        const int error = errno;
        struct stat info {};
        // mkdir of an existing parent may fail (a read-only root). Only a missing one is an error.
        if (::stat(part.c_str(), &info) != 0) fail("create the folder", part, error);
      }
      if (end == std::string::npos) break;
    }
    struct stat info {};  // a link to a folder is accepted
    if (::stat(path.c_str(), &info) != 0) fail("create the folder", path, errno);
    if (!S_ISDIR(info.st_mode)) fail("create the folder", path, ENOTDIR);
  }

  void sync_folder(const std::string& path) override {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.open()) fail("open the folder", path, errno);
    sync_entries(fd, path);
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(str("rename ", from, " to"), to, errno);
  }

  bool exchange(const std::string& a, const std::string& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
    if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
    fail(str("exchange ", a, " with"), b, errno);
  }

  void remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT) fail("remove", path, errno);
  }

  std::vector<std::string> list(const std::string& folder) override {
    DIR* dir = ::opendir(folder.c_str());
    if (dir == nullptr) fail_to_read("list the folder", folder, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) fail_to_read("list the folder", folder, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool exists(const std::string& path) override {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0;
  }

  bool is_folder(const std::string& path) override {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

 private:
  static void sync_entries(const Fd& folder, const std::string& path) {
    // Some network file systems cannot sync a folder.
    if (::fsync(folder.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
      fail("sync the folder", path, errno);
    }
  }
  // Syncs the entry of a new folder: without it a crash would lose the checkpoints in it.
  static void sync_parent(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    const Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.open()) sync_entries(fd, parent);  // a writable parent may not be readable
  }
};

}  // namespace

std::shared_ptr<FileSystem> local_files() { return std::make_shared<LocalFiles>(); }

std::string put_in_place(FileSystem& files, const std::string& draft, const std::string& place,
                         const std::string& away) {
  if (!files.exists(place)) {
    files.rename(draft, place);
    return "";
  }
  if (files.exchange(draft, place)) return draft;
  files.rename(place, away);
  try {
    files.rename(draft, place);
  } catch (const DataError&) {
    files.rename(away, place);
    throw;
  }
  return away;
}

void remove_tree(FileSystem& files, const std::string& path) {
  // A link is removed, not followed.
  if (files.is_folder(path)) {
    for (const std::string& name : files.list(path)) remove_tree(files, path + "/" + name);
  }
  files.remove(path);
}

std::string read_text(FileSystem& files, const std::string& path, std::int64_t most) {
  const std::unique_ptr<File> file = files.open(path);
  const std::int64_t size = file->size();
  if (size > most) {
    throw DataError(str(path, " has ", size, " bytes; must be at most ", most,
                        ". It is not the file that its name suggests"));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file->read(0, reinterpret_cast<std::byte*>(text.data()), size);
  return text;
}

void write_text(FileSystem& files, const std::string& path, const std::string& text) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  const std::unique_ptr<File> file = files.create(path, bytes);
  file->write(0, reinterpret_cast<const std::byte*>(text.data()), bytes);
  file->sync();
}

}  // namespace tessera::checkpoint
