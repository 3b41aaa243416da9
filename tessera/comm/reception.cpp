#include "tessera/comm/reception.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/comm/secret.h"

namespace tessera::comm {
namespace {

constexpr int kAcceptedAtOnce = 64;  // so that a flood of calls does not starve who is inside

bool is_unix(const Fd& socket) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         domain == AF_UNIX;
}

// What is sent here fits the buffer of a new connection; one that does not take it is dropped.
template <typename T>
bool say(const Fd& socket, const T& value) {
  return send(socket.get(), &value, sizeof(value), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(value);
}

}  // namespace

Reception::Reception(std::vector<Fd> listeners, Invitation invitation, Limits limits)
    : listeners_(std::move(listeners)), invitation_(std::move(invitation)), limits_(limits) {
  for (const Fd& listener : listeners_) {
    fcntl(listener.get(), F_SETFL, fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  }
}

void Reception::add_to(std::vector<pollfd>& polls) {
  const short open = Clock::now() < pause_ ? 0 : POLLIN;
  for (const Fd& listener : listeners_) polls.push_back({listener.get(), open, 0});
  for (const Caller& caller : callers_) polls.push_back({caller.socket.get(), POLLIN, 0});
}

int Reception::wait_ms() const {
  const auto now = Clock::now();
  Clock::time_point due = Clock::time_point::max();
  if (!callers_.empty()) due = callers_.front().end;
  if (now < pause_) due = std::min(due, pause_);
  if (due == Clock::time_point::max()) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - now).count();
  return static_cast<int>(std::clamp<long long>(left + 1, 0, 1'000'000));
}

std::vector<Guest> Reception::act_on(std::span<const pollfd> polls) {
  std::vector<Guest> guests;
  const auto now = Clock::now();
  std::deque<Caller> stay;
  for (std::size_t i = 0; i < callers_.size(); ++i) {
    Caller& caller = callers_[i];
    Guest guest;
    if (now >= caller.end) continue;
    if (polls[listeners_.size() + i].revents == 0 || listen_to(caller, guest)) {
      stay.push_back(std::move(caller));
    } else if (guest.socket.open()) {
      guests.push_back(std::move(guest));
    }
  }
  callers_ = std::move(stay);
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (polls[i].revents != 0) accept_from(listeners_[i]);
  }
  return guests;
}

void Reception::accept_from(const Fd& listener) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) {
      const int why = errno;
      if (why == EINTR || why == ECONNABORTED) continue;
      if (why == EAGAIN || why == EWOULDBLOCK) return;
      if (callers_.empty()) {
        pause_ = Clock::now() + std::chrono::milliseconds(100);
      } else {
        callers_.pop_front();  // no descriptor is free: this makes one
      }
      return;
    }
    if (is_unix(socket) && !same_user(socket)) continue;
    const Challenge challenge = make_challenge();
    if (!say(socket, challenge)) continue;
    const std::size_t most = limits_.callers + static_cast<std::size_t>(invitation_.size);
    if (callers_.size() >= most) callers_.pop_front();
    callers_.push_back({std::move(socket), challenge, "", Clock::now() + limits_.patience});
  }
}

bool Reception::listen_to(Caller& caller, Guest& guest) {
  Reply reply{};
  char buffer[sizeof(reply)];
  const ssize_t got =
      recv(caller.socket.get(), buffer, sizeof(reply) - caller.heard.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0) return false;
  caller.heard.append(buffer, static_cast<std::size_t>(got));
  if (caller.heard.size() < sizeof(reply)) return true;
  std::memcpy(&reply, caller.heard.data(), sizeof(reply));
  const Verdict verdict = judge(invitation_, caller.challenge, reply);
  if (say(caller.socket, verdict) && verdict.welcome == 1) {
    guest = {std::move(caller.socket), reply.rank};
  }
  return false;
}

void Reception::close() {
  listeners_.clear();
  callers_.clear();
}

}  // namespace tessera::comm
