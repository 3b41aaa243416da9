#include "tessera/core/publish.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : "";
}

std::string advice(int error) {
  return error == ENOENT ? "; the folder must exist" : advice_on(error);
}

constexpr std::string_view kDraftSuffix = ".part";

std::string draft_of(const std::string& path) { return str(path, ".", ::getpid(), kDraftSuffix); }

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw UsageError(str("cannot write ", quote(path), ": ", why));
}

[[noreturn]] void fail(const std::string& path, std::string_view text, int error) {
  throw DataError(str("cannot write ", text.size(), " bytes to ", quote(path), ": ",
                      std::strerror(error), advice(error)));
}

// A descriptor of this process (/dev/stdout) is duplicated: opening it again would overwrite a file
// from its beginning.
Fd open_direct(const std::string& path) {
  const std::string folder = real_path(folder_of(path));
  if (folder == str("/proc/", ::getpid(), "/fd")) {
    return Fd(::fcntl(std::atoi(path.substr(path.rfind('/') + 1).c_str()), F_DUPFD_CLOEXEC, 3));
  }
  Fd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (file.open()) ::fcntl(file.get(), F_SETFL, O_APPEND);  // only open() must not block
  return file;
}

void publish_directly(const std::string& path, std::string_view text) {
  const Fd file = open_direct(path);
  if (!file.open() && errno == ENXIO) {
    throw DataError(str("cannot write ", text.size(), " bytes to ", quote(path),
                        ": no process reads this pipe; start its reader first"));
  }
  if (!file.open() || !write_all(file.get(), text)) fail(path, text, errno);
}

// Returns true if a draft can be created, or if a device accepts bytes (/dev/full does not).
// Otherwise sets errno. Returns true for a pipe, which cannot be tested before its reader opens it.
bool can_write(const PublishTarget& target) {
  if (!target.direct) {
    const std::string draft = draft_of(target.path);
    ::unlink(draft.c_str());  // left by a dead process with the same pid
    const Fd file(
        ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    return file.open() && ::unlink(draft.c_str()) == 0;
  }
  struct stat info {};
  if (::stat(target.path.c_str(), &info) == 0 && !S_ISCHR(info.st_mode)) return true;
  const Fd file = open_direct(target.path);
  return file.open() && ::write(file.get(), "", 0) == 0;
}

}  // namespace

std::string advice_on(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "; free some space there, or write elsewhere";
    case EROFS:
    case EACCES:
    case EPERM: return "; choose a writable folder, or change its permissions";
    case EINVAL: return "; this file system does not support the operation";
    case EFBIG: return "; the file exceeds the size limit: raise it (ulimit -f)";
    case EIO: return "; the disk or its network failed: check it, and write elsewhere";
    case EMFILE:
    case ENFILE: return "; too many files are open: raise the limit (ulimit -n)";
    case ENOTDIR: return "; part of this path is a file: choose another path";
    default: return "";
  }
}

PublishTarget publish_target(const std::string& path) {
  if (path.empty()) throw UsageError("the path of the file to write is \"\"; must not be empty");
  constexpr int kMaxLinks = 40;  // same as the kernel
  PublishTarget target{path, false};
  for (int links = 0;; ++links) {
    struct stat info {};
    if (::lstat(target.path.c_str(), &info) != 0) {
      if (errno == ENOENT && target.path.back() != '/') return target;  // will be created
      refuse(path, std::strerror(errno) + advice(errno));
    }
    if (S_ISDIR(info.st_mode)) refuse(path, "it is a folder; must be a file");
    if (S_ISSOCK(info.st_mode)) refuse(path, "it is a socket; must be a file");
    if (S_ISREG(info.st_mode)) return target;
    // Links in /proc are open descriptors and may not lead to a path.
    target.direct =
        !S_ISLNK(info.st_mode) || real_path(folder_of(target.path)).starts_with("/proc/");
    if (target.direct) return target;
    if (links == kMaxLinks) refuse(path, "it is a chain of too many symbolic links");
    char to[4096];
    const ssize_t length = ::readlink(target.path.c_str(), to, sizeof to);
    if (length <= 0 || length == static_cast<ssize_t>(sizeof to))
      refuse(path, "it is a symbolic link that cannot be read");
    const std::string next(to, static_cast<std::size_t>(length));
    target.path = next[0] == '/' ? next : folder_of(target.path) + "/" + next;
  }
}

void publish(const std::string& path, std::string_view text) {
  const PublishTarget target = publish_target(path);
  if (target.direct) return publish_directly(target.path, text);
  const std::string draft = draft_of(target.path);
  const auto give_up = [&] {
    const int error = errno;
    ::unlink(draft.c_str());
    fail(path, text, error);
  };
  ::unlink(draft.c_str());  // left by a dead process with the same pid
  Fd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.open()) fail(path, text, errno);
  struct stat before {};
  if (::stat(target.path.c_str(), &before) == 0) {
    ::fchmod(file.get(), before.st_mode & 07777);  // keep the permissions of the old file
  }
  if (!write_all(file.get(), text) || ::fsync(file.get()) != 0) give_up();
  // Some file systems report a full disk only here.
  if (::close(file.release()) != 0) give_up();
  if (std::rename(draft.c_str(), target.path.c_str()) != 0) give_up();
  // Makes the rename survive a crash of the machine, if the file system supports it.
  const Fd folder(::open(folder_of(target.path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.open()) ::fsync(folder.get());
}

std::string_view published_by(std::string_view draft) {
  if (!draft.ends_with(kDraftSuffix)) return {};
  draft.remove_suffix(kDraftSuffix.size());
  const std::size_t dot = draft.rfind('.');
  if (dot == std::string_view::npos || dot + 1 == draft.size()) return {};
  if (draft.find_first_not_of("0123456789", dot + 1) != std::string_view::npos) return {};
  return draft.substr(0, dot);
}

void check_publishable(const std::string& path, std::string_view flag) {
  try {
    const PublishTarget target = publish_target(path);
    // The reader of a pipe may start later.
    const std::string must = target.direct ? target.path : folder_of(target.path);
    if (::access(must.c_str(), target.direct ? W_OK : W_OK | X_OK) != 0) {
      refuse(path, std::strerror(errno) + advice(errno));
    }
    if (!can_write(target)) refuse(path, std::strerror(errno) + advice(errno));
  } catch (const UsageError& error) {
    throw UsageError(str(flag, ": ", error.what()));
  }
}

}  // namespace tessera
