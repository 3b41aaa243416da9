#include "tessera/dashboard/lobby.h"

#include <sys/epoll.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

constexpr std::uint64_t kWake = 0;  // no guest has this number
constexpr int kWhile = 200;         // milliseconds
constexpr std::chrono::milliseconds kMoment{200};

}  // namespace

Lobby::Lobby(int wake) : ready_(::epoll_create1(EPOLL_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (!ready_.open() || ::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, wake, &event) != 0) {
    throw Error(str("the server cannot wait for connections: ", std::strerror(errno)));
  }
}

void Lobby::wait(std::unique_ptr<Connection> connection, double seconds) {
  const auto now = Connection::Clock::now();
  const auto patience = std::chrono::duration_cast<Connection::Clock::duration>(
      std::chrono::duration<double>(seconds));
  const int fd = connection->socket();
  const std::lock_guard lock(mutex_);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;  // one thread is told, once
  event.data.u64 = ++last_;
  guests_[last_] = {std::move(connection), now, now + patience};
  // Most have been here before.
  if (::epoll_ctl(ready_.get(), EPOLL_CTL_MOD, fd, &event) != 0 &&
      ::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    guests_.erase(last_);
  }
}

std::unique_ptr<Connection> Lobby::next() {
  epoll_event event{};
  if (::epoll_wait(ready_.get(), &event, 1, kWhile) != 1 || event.data.u64 == kWake) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = guests_.find(event.data.u64);
  if (found == guests_.end()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(found->second.connection);
  guests_.erase(found);
  return connection;
}

void Lobby::sweep() {
  const auto now = Connection::Clock::now();
  const std::lock_guard lock(mutex_);
  // Who has spoken is not sent away, however long the answer takes to begin.
  std::erase_if(guests_, [&](const auto& guest) {
    return guest.second.until <= now && guest.second.connection->silent();
  });
}

bool Lobby::dismiss_one() {
  const auto now = Connection::Clock::now();
  const std::lock_guard lock(mutex_);
  auto longest = guests_.end();
  for (auto each = guests_.begin(); each != guests_.end(); ++each) {
    const bool longer = longest == guests_.end() || each->second.since < longest->second.since;
    if (longer && now - each->second.since >= kMoment && each->second.connection->silent()) {
      longest = each;
    }
  }
  if (longest == guests_.end()) return false;
  guests_.erase(longest);
  return true;
}

}  // namespace tessera::dashboard
