#include "tessera/process/stdin_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "tessera/core/index.h"

namespace tessera::process {
namespace {

// Reading a terminal from the background would stop the launcher itself.
bool in_foreground(int terminal) { return ::tcgetpgrp(terminal) == ::getpgrp(); }

}  // namespace

Fd StdinPump::attach(int in) {
  if (::isatty(in) != 1) return Fd();
  int fds[2];
  if (!in_foreground(in) || ::pipe2(fds, O_CLOEXEC) != 0) {
    return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  terminal_ = in;
  pipe_ = Fd(fds[1]);
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  return Fd(fds[0]);
}

void StdinPump::add_to(std::vector<pollfd>& polls) {
  polled_at_ = kNotPolled;
  if (!pipe_.open()) return;
  if (!pending_.empty()) {
    polled_at_ = polls.size();
    polls.push_back({pipe_.get(), POLLOUT, 0});
  } else if (in_foreground(terminal_)) {
    polled_at_ = polls.size();
    polls.push_back({terminal_, POLLIN, 0});
  }
}

void StdinPump::act_on(const std::vector<pollfd>& polls) {
  if (polled_at_ == kNotPolled || polls[polled_at_].revents == 0) return;
  if (!pending_.empty()) {
    const ssize_t count = ::write(pipe_.get(), pending_.data(), pending_.size());
    if (count > 0) pending_.erase(0, as_size(count));
    if (count < 0 && errno != EAGAIN && errno != EINTR) pipe_.reset();  // rank 0 closed its end
    return;
  }
  char buffer[4096];
  const ssize_t count = ::read(terminal_, buffer, sizeof buffer);
  if (count > 0) pending_.assign(buffer, as_size(count));
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) pipe_.reset();
}

}  // namespace tessera::process
