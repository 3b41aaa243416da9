#include "tessera/dashboard/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tessera::dashboard {
namespace {

constexpr std::size_t kMaxDrained = std::size_t{1} << 20;
constexpr double kDrainSeconds = 0.5;

Connection::Clock::duration lasting(double seconds) {
  return std::chrono::duration_cast<Connection::Clock::duration>(
      std::chrono::duration<double>(seconds));
}

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Connection::Connection(Fd fd, std::atomic<int>& open, double seconds)
    : fd_(std::move(fd)), open_(open) {
  ++open_;
  expect_request(seconds);
}

Connection::~Connection() {
  fd_.reset();  // before the count allows another connection
  --open_;
}

bool Connection::receive(std::size_t most) {
  in_.erase(0, std::exchange(at_, 0));
  char buffer[16 << 10];
  while (in_.size() < most) {
    const ssize_t got =
        ::recv(fd_.get(), buffer, std::min(sizeof buffer, most - in_.size()), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_wait()) return true;
    if (got <= 0) return false;
    in_.append(buffer, static_cast<std::size_t>(got));
  }
  return true;
}

bool Connection::silent() const {
  char byte = 0;
  return ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && would_wait();
}

bool Connection::gone() const {
  pollfd entry{fd_.get(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0;
}

bool Connection::flush() {
  std::size_t done = 0;
  while (done < out_.size()) {
    const ssize_t sent =
        ::send(fd_.get(), out_.data() + done, out_.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && would_wait()) break;
    if (sent < 0) return false;
    done += static_cast<std::size_t>(sent);
  }
  if (done > 0) since_ = Clock::now();
  out_.erase(0, done);
  return true;
}

bool Connection::wait_until_sent(double seconds) {
  const Clock::time_point until = Clock::now() + lasting(seconds);
  while (flush()) {
    if (!has_unsent()) return true;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{fd_.get(), POLLOUT, 0};
    ::poll(&entry, 1, static_cast<int>(left) + 1);
  }
  return false;
}

bool Connection::drain() {
  if (!draining_) {
    draining_ = true;
    partial_ = false;
    ::shutdown(fd_.get(), SHUT_WR);
    since_ = Clock::now();
    deadline_ = since_ + lasting(kDrainSeconds);
    in_.clear();
    at_ = 0;
  }
  char buffer[16 << 10];
  while (drained_ < kMaxDrained) {
    const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_wait()) return true;
    if (got <= 0) return false;
    drained_ += static_cast<std::size_t>(got);
  }
  return false;
}

void Connection::expect_request(double seconds) {
  since_ = Clock::now();
  deadline_ = since_ + lasting(seconds);
}

void Connection::expect_rest(double seconds) {
  if (std::exchange(partial_, true)) return;
  expect_request(seconds);
}

void Connection::expect_progress(double seconds) { deadline_ = Clock::now() + lasting(seconds); }

}  // namespace tessera::dashboard
