#include "tessera/dashboard/line_tail.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <vector>

namespace tessera::dashboard {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;

}  // namespace

bool LineTail::open() {
  // Must not block on a pipe of this name, and must not consume its lines.
  Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat about {};
  if (!file.open() || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) return false;
  file_ = std::move(file);
  device_ = about.st_dev;
  inode_ = about.st_ino;
  at_ = 0;
  half_.clear();
  skipping_ = false;
  return true;
}

bool LineTail::read_some(std::size_t most, const Listener& listener, std::size_t& taken) {
  std::vector<char> buffer(1 << 16);
  while (taken < most) {
    const ssize_t got = ::pread(file_.get(), buffer.data(), buffer.size(), at_);
    if (got <= 0) return false;
    at_ += got;
    taken += static_cast<std::size_t>(got);
    std::string_view rest(buffer.data(), static_cast<std::size_t>(got));
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      half_.append(rest.substr(0, end));
      rest.remove_prefix(end + 1);
      if (!skipping_ && !half_.empty()) listener.line(half_);
      skipping_ = false;
      half_.clear();
    }
    half_.append(rest);
    if (half_.size() > kLongestLine) skipping_ = true, half_.clear();
  }
  return true;
}

bool LineTail::read(std::size_t most, const Listener& listener) {
  std::size_t taken = 0;
  struct stat now {};
  const bool there = ::stat(path_.c_str(), &now) == 0 && S_ISREG(now.st_mode);
  if (!file_.open()) {
    if (!there || !open()) return false;
  }
  struct stat own {};
  if (::fstat(file_.get(), &own) == 0) {
    changed_ =
        static_cast<double>(own.st_mtim.tv_sec) + 1e-9 * static_cast<double>(own.st_mtim.tv_nsec);
    if (own.st_size < at_) {  // truncated
      at_ = 0;
      half_.clear();
      skipping_ = false;
      listener.reset();
    }
  }
  if (read_some(most, listener, taken)) return true;
  if (there && (now.st_dev != device_ || now.st_ino != inode_)) {
    if (!half_.empty() && !skipping_) listener.line(half_);  // will not be completed
    if (open()) {
      listener.reset();
      return read_some(most, listener, taken);
    }
  }
  return false;
}

}  // namespace tessera::dashboard
