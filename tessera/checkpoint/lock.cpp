#include "tessera/checkpoint/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tessera/checkpoint/file_system.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

constexpr auto kLockTimeout = std::chrono::seconds(1);

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

// Returns the text of the holder, made printable: a forged file may contain anything.
std::string holder(const Fd& file) {
  char text[200];
  const ssize_t length = ::pread(file.get(), text, sizeof text, 0);
  std::string line(text, static_cast<std::size_t>(length > 0 ? length : 0));
  line = line.substr(0, line.find('\n'));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = '?';
  }
  return line.empty() ? "another run" : line;
}

}  // namespace

LockFile lock_file(const std::string& dir) {
  struct stat info {};
  if (::lstat((dir + "/.lock").c_str(), &info) != 0) return {};
  return {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino)};
}

FolderLock::FolderLock(const std::string& dir, const std::string& who) {
  local_files()->make_folder(dir);
  const std::string path = dir + "/.lock";
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  file_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0666));
  // The file of another user: a lock does not need write permission.
  if (!file_.open() && errno == EACCES) file_ = Fd(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file_.open()) {
    throw DataError(str("cannot open ", path, ": ", std::strerror(errno), advice_on(errno)));
  }
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw DataError(path + " is not a regular file; remove it");
  }
  // A run that was just killed may take a moment to exit.
  const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
  bool locked = false;
  while (!(locked = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) && errno == EWOULDBLOCK &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!locked) {
    if (errno == EWOULDBLOCK) {
      throw UsageError(str(dir, " is being written to by ", holder(file_),
                           "; wait until that ends, or choose another folder"));
    }
    missing_ = str("cannot lock ", path, ": ", std::strerror(errno),
                   "; make sure that no other process writes to ", dir);
    return;
  }
  // Information for other writers. The lock is held even if this cannot be written.
  if (::ftruncate(file_.get(), 0) == 0) {
    write_all(file_.get(), str(who, " (pid ", ::getpid(), " on ", host_name(), ")\n"));
  }
}

}  // namespace tessera::checkpoint
