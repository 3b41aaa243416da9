#include "tessera/core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera {
namespace {

std::string flag_prefix(const std::string& flag) { return flag.empty() ? flag : flag + ": "; }

}  // namespace

std::string kind_of_file(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

std::string kind_of_file(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 ? kind_of_file(about.st_mode) : "nothing";
}

Fd open_regular(const std::string& path, const std::string& wanted, const std::string& flag) {
  // O_NONBLOCK has no effect on regular files; it opens a pipe without waiting for a writer.
  Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const int problem = errno;
  struct stat about {};
  // Files that cannot be opened can still be classified: a socket, or another user's pipe.
  const bool seen = (file.open() ? ::fstat(file.get(), &about) : ::stat(path.c_str(), &about)) == 0;
  if (seen && !S_ISREG(about.st_mode)) {
    throw UsageError(str(flag_prefix(flag), quote(path), " is ", kind_of_file(about.st_mode),
                         "; must be ", wanted));
  }
  if (!file.open() || !seen) {
    throw UsageError(str(flag_prefix(flag), "cannot read ", quote(path), ": ",
                         std::strerror(file.open() ? errno : problem), "; must be ", wanted));
  }
  return file;
}

std::string read_small_file(const std::string& path, std::int64_t limit, const std::string& wanted,
                            const std::string& flag) {
  const Fd file = open_regular(path, wanted, flag);
  const auto too_long = [&](const std::string& size) {
    return DataError(str(flag_prefix(flag), quote(path), " has ", size, " bytes; must be ", wanted,
                         " of at most ", format_bytes(limit, ByteUnits::kBinary)));
  };
  struct stat about {};
  if (::fstat(file.get(), &about) == 0 && about.st_size > limit) {
    throw too_long(str(about.st_size));
  }
  // Does not trust the size from fstat: the file may grow, and files in /proc report size 0.
  std::string text;
  char part[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.get(), part, sizeof part);
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw DataError(
          str(flag_prefix(flag), "cannot read ", quote(path), ": ", std::strerror(errno)));
    }
    text.append(part, static_cast<std::size_t>(got));
    if (static_cast<std::int64_t>(text.size()) > limit) throw too_long(str("more than ", limit));
  }
}

}  // namespace tessera
