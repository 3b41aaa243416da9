#include "tessera/comm/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/comm/secret.h"

namespace tessera::comm {
namespace {

constexpr int kAcceptedAtOnce = 64;  // so that a flood does not starve established connections
// A rank accepts connections for the life of the job, so strangers must not use up its descriptors.
// Few ranks connect to it at once, and those that find no room try again.
constexpr int kRanksAtOnce = 64;

bool is_unix(const Fd& socket) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         domain == AF_UNIX;
}

// Sends a value small enough for the buffer of a new connection. Returns false if the socket does
// not take it at once; the caller then drops the connection.
template <typename T>
bool send_now(const Fd& socket, const T& value) {
  return send(socket.get(), &value, sizeof(value), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(value);
}

}  // namespace

Acceptor::Acceptor(std::vector<Fd> listeners, Credentials credentials, Limits limits)
    : listeners_(std::move(listeners)), credentials_(std::move(credentials)), limits_(limits) {
  for (const Fd& listener : listeners_) {
    fcntl(listener.get(), F_SETFL, fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  }
}

void Acceptor::add_to(std::vector<pollfd>& polls) {
  const short open = Clock::now() < pause_ ? 0 : POLLIN;
  for (const Fd& listener : listeners_) polls.push_back({listener.get(), open, 0});
  for (const Pending& pending : pending_) polls.push_back({pending.socket.get(), POLLIN, 0});
}

int Acceptor::wait_ms() const {
  const auto now = Clock::now();
  Clock::time_point due = Clock::time_point::max();
  if (!pending_.empty()) due = pending_.front().end;
  if (now < pause_) due = std::min(due, pause_);
  if (due == Clock::time_point::max()) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - now).count();
  return static_cast<int>(std::clamp<long long>(left + 1, 0, 1'000'000));
}

std::vector<Accepted> Acceptor::act_on(std::span<const pollfd> polls) {
  std::vector<Accepted> accepted;
  const auto now = Clock::now();
  std::deque<Pending> stay;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Pending& pending = pending_[i];
    Accepted peer;
    if (now >= pending.end) continue;
    if (polls[listeners_.size() + i].revents == 0 || read_reply(pending, peer)) {
      stay.push_back(std::move(pending));
    } else if (peer.socket.open()) {
      accepted.push_back(std::move(peer));
    }
  }
  pending_ = std::move(stay);
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (polls[i].revents != 0) accept_from(listeners_[i]);
  }
  return accepted;
}

void Acceptor::accept_from(const Fd& listener) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) {
      const int why = errno;
      if (why == EINTR || why == ECONNABORTED) continue;
      if (why == EAGAIN || why == EWOULDBLOCK) return;
      if (pending_.empty()) {
        pause_ = Clock::now() + std::chrono::milliseconds(100);
      } else {
        pending_.pop_front();  // out of descriptors: free one
      }
      return;
    }
    if (is_unix(socket) && !same_user(socket)) continue;
    const Challenge challenge = make_challenge();
    if (!send_now(socket, challenge)) continue;
    const int ranks = credentials_.purpose == Credentials::Purpose::peer
                          ? std::min(credentials_.size, kRanksAtOnce)
                          : credentials_.size;
    if (pending_.size() >= limits_.pending + static_cast<std::size_t>(ranks)) pending_.pop_front();
    pending_.push_back({std::move(socket), challenge, "", Clock::now() + limits_.timeout});
  }
}

bool Acceptor::read_reply(Pending& pending, Accepted& peer) {
  Reply reply{};
  char buffer[sizeof(reply)];
  const ssize_t got =
      recv(pending.socket.get(), buffer, sizeof(reply) - pending.received.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0) return false;
  pending.received.append(buffer, static_cast<std::size_t>(got));
  if (pending.received.size() < sizeof(reply)) return true;
  std::memcpy(&reply, pending.received.data(), sizeof(reply));
  const Verdict verdict = verify_reply(credentials_, pending.challenge, reply);
  if (send_now(pending.socket, verdict) && verdict.accepted == 1) {
    peer = {std::move(pending.socket), reply.rank};
  }
  return false;
}

void Acceptor::close() {
  listeners_.clear();
  pending_.clear();
}

}  // namespace tessera::comm
