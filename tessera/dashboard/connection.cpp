#include "tessera/dashboard/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tessera::dashboard {
namespace {

Connection::Clock::time_point after(double seconds) {
  return Connection::Clock::now() + std::chrono::duration_cast<Connection::Clock::duration>(
                                        std::chrono::duration<double>(seconds));
}

constexpr std::size_t kMostGathered = 64 << 10;

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Connection::Connection(Fd fd, std::size_t most_bytes, double seconds, Crew& crew,
                       std::atomic<int>& open)
    : fd_(std::move(fd)), most_bytes_(most_bytes), seconds_(seconds), crew_(crew), open_(open) {
  ++open_;
}

Connection::~Connection() {
  fd_.reset();  // before another may be let in
  --open_;
}

bool Connection::silent() const {
  char byte = 0;
  return ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && would_wait();
}

void Connection::begin_request() {
  deadline_ = after(seconds_);
  taken_ = 0;
  timed_out_ = too_long_ = answered_ = false;
  gathers_ = true;
}

bool Connection::wait(short events, Clock::time_point until) const {
  if (Clock::now() >= until) return false;
  pollfd at_once{fd_.get(), events, 0};
  if (::poll(&at_once, 1, 0) > 0) return true;
  const Crew::Aside aside(crew_);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{fd_.get(), events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool Connection::is_readable() const { return buffered() || wait(POLLIN, deadline_); }

bool Connection::is_writable() const { return wait(POLLOUT, after(seconds_)); }

ssize_t Connection::read(char* to, size_t size) {
  if (at_ == end_) {
    // What was said is heard before we listen: "100 Continue".
    if (!flush()) return -1;
    ssize_t got = -1;
    for (;;) {
      timed_out_ = Clock::now() >= deadline_;
      if (timed_out_) return -1;
      got = ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got >= 0 || !would_wait()) break;
      timed_out_ = !wait(POLLIN, deadline_);
      if (timed_out_) return -1;
    }
    if (got <= 0) return got;
    at_ = 0;
    end_ = static_cast<std::size_t>(got);
  }
  const std::size_t count = std::min({size, end_ - at_, most_bytes_ - taken_});
  if (count == 0) {
    too_long_ = true;
    return -1;
  }
  std::memcpy(to, buffer_.data() + at_, count);
  at_ += count;
  taken_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* from, size_t size) {
  answered_ = true;
  if (gathers_ && gathered_.size() + size <= kMostGathered) {
    gathered_.append(from, size);
    return static_cast<ssize_t>(size);
  }
  const bool sent = send_all(gathered_.data(), gathered_.size(), MSG_MORE);
  gathered_.clear();
  return sent && send_all(from, size, 0) ? static_cast<ssize_t>(size) : -1;
}

bool Connection::flush() {
  const bool sent = send_all(gathered_.data(), gathered_.size(), 0);
  gathered_.clear();
  return sent;
}

bool Connection::send_all(const char* from, std::size_t size, int flags) {
  if (size == 0) return true;
  // A client that takes some of it in time gets the rest, but not for ever.
  constexpr double kLongest = 600;
  const Clock::time_point last = after(kLongest);
  Clock::time_point until = after(seconds_);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t sent =
        ::send(fd_.get(), from + done, size - done, flags | MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
      until = std::min(last, after(seconds_));
    } else if (errno != EINTR && (errno != EAGAIN || !wait(POLLOUT, until))) {
      return false;
    }
  }
  return true;
}

void Connection::write_plainly(const std::string& text) { (void)write(text.data(), text.size()); }

void Connection::finish() {
  ::shutdown(fd_.get(), SHUT_WR);
  // Closing while bytes wait to be read would reset the connection, and the answer with it.
  const Clock::time_point until = after(std::min(seconds_, 0.5));
  std::size_t drained = 0;
  while (drained < (std::size_t{1} << 20) && wait(POLLIN, until)) {
    const ssize_t got = ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    drained += static_cast<std::size_t>(got);
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const { ip.clear(), port = 0; }
void Connection::get_local_ip_and_port(std::string& ip, int& port) const { ip.clear(), port = 0; }

}  // namespace tessera::dashboard
