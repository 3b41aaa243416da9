#include "tessera/dashboard/idle_connections.h"

#include <sys/epoll.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

constexpr std::uint64_t kWake = 0;  // no connection has this number
constexpr int kPollMilliseconds = 200;
constexpr std::chrono::milliseconds kEvictableAge{200};

}  // namespace

IdleConnections::IdleConnections(int wake) : ready_(::epoll_create1(EPOLL_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (!ready_.open() || ::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, wake, &event) != 0) {
    throw Error(str("epoll is not available: ", std::strerror(errno)));
  }
}

void IdleConnections::wait(std::unique_ptr<Connection> connection) {
  const int fd = connection->socket();
  const std::lock_guard lock(mutex_);
  epoll_event event{};
  event.events = EPOLLONESHOT;  // one thread gets the event, once
  event.events |= connection->has_unsent() ? EPOLLOUT : EPOLLIN | EPOLLRDHUP;
  event.data.u64 = ++last_;
  connections_[last_] = std::move(connection);
  // Most were registered before.
  if (::epoll_ctl(ready_.get(), EPOLL_CTL_MOD, fd, &event) != 0 &&
      ::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    connections_.erase(last_);
  }
}

std::unique_ptr<Connection> IdleConnections::next() {
  epoll_event event{};
  if (::epoll_wait(ready_.get(), &event, 1, kPollMilliseconds) != 1 || event.data.u64 == kWake)
    return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(event.data.u64);
  if (found == connections_.end()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(found->second);
  connections_.erase(found);
  return connection;
}

std::vector<std::unique_ptr<Connection>> IdleConnections::take_overdue() {
  std::vector<std::unique_ptr<Connection>> overdue;
  const std::lock_guard lock(mutex_);
  for (auto each = connections_.begin(); each != connections_.end();) {
    const Connection& connection = *each->second;
    // A client that has acted is not dropped because the threads are busy.
    const bool passive =
        connection.is_overdue() &&
        (connection.has_unsent() || connection.is_draining() || connection.silent());
    if (passive) overdue.push_back(std::move(each->second));
    each = passive ? connections_.erase(each) : std::next(each);
  }
  return overdue;
}

std::unique_ptr<Connection> IdleConnections::take_oldest() {
  const auto latest = Connection::Clock::now() - kEvictableAge;
  const std::lock_guard lock(mutex_);
  auto oldest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    const Connection& connection = *each->second;
    const bool older =
        connection.since() <= (oldest == connections_.end() ? latest : oldest->second->since());
    if (older && (connection.has_unsent() || connection.silent())) oldest = each;
  }
  if (oldest == connections_.end()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(oldest->second);
  connections_.erase(oldest);
  return connection;
}

}  // namespace tessera::dashboard
