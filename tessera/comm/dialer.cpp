#include "tessera/comm/dialer.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/comm/secret.h"
#include "tessera/comm/socket.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds kCrowded{10};       // the other side has no room at the moment
constexpr std::chrono::milliseconds kUnreachable{250};  // the network has no route at the moment

}  // namespace

Dialer::Dialer(int rank, Credentials credentials)
    : rank_(rank), credentials_(std::move(credentials)) {}

void Dialer::dial(int rank, PeerAddress address) {
  Call& call = calls_.emplace_back();
  call.rank = rank;
  call.address = std::move(address);
  call.resume = Clock::now();
}

void Dialer::cancel(int rank) {
  std::erase_if(calls_, [&](const Call& call) { return call.rank == rank; });
}

bool Dialer::cancel_unless_accepted(int rank) {
  std::erase_if(
      calls_, [&](const Call& call) { return call.rank == rank && call.stage != Stage::verdict; });
  return std::none_of(calls_.begin(), calls_.end(),
                      [&](const Call& call) { return call.rank == rank; });
}

std::string Dialer::explain(const Result& result) const {
  switch (result.outcome) {
    case Outcome::refused:
      return str("rank ", rank_, " cannot connect to rank ", result.rank,
                 ": connection refused. Either rank ", result.rank,
                 " has ended, or a firewall rejects the connection");
    case Outcome::other_user:
      return str("the process that listens for rank ", result.rank,
                 " is a process of another user; all ranks of a job must run as one user");
    default:
      return str("rank ", result.rank, " and rank ", rank_,
                 " do not have the same secret, run or size; give all ranks the same");
  }
}

void Dialer::add_to(std::vector<pollfd>& polls) const {
  for (const Call& call : calls_) {
    const short events = call.stage == Stage::connecting ? POLLOUT : POLLIN;
    polls.push_back({call.socket.get(), events, 0});  // poll() skips the -1 of a pause
  }
}

int Dialer::wait_ms() const {
  auto due = Clock::time_point::max();
  for (const Call& call : calls_) {
    if (call.stage == Stage::pause) due = std::min(due, call.resume);
  }
  if (due == Clock::time_point::max()) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - Clock::now());
  return static_cast<int>(std::clamp<long long>(left.count() + 1, 0, 1'000'000));
}

std::vector<Dialer::Result> Dialer::act_on(std::span<const pollfd> polls) {
  std::vector<Result> results;
  std::deque<Call> stay;
  const auto now = Clock::now();
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    Call& call = calls_[i];
    Progress progress;
    if (call.stage == Stage::pause) {
      if (now >= call.resume) progress = begin(call);
    } else if (i < polls.size() && polls[i].revents != 0) {
      progress = advance(call);
    }
    if (!progress) {
      stay.push_back(std::move(call));
    } else {
      results.push_back({call.rank, *progress, std::move(call.socket)});
    }
  }
  calls_ = std::move(stay);
  return results;
}

Dialer::Progress Dialer::try_again(Call& call, std::chrono::milliseconds pause) {
  call.socket.reset();
  call.received.clear();
  call.stage = Stage::pause;
  call.resume = Clock::now() + pause;
  return std::nullopt;
}

Dialer::Progress Dialer::begin(Call& call) {
  if (!call.address.unix_name.empty()) {
    bool no_listener = false;
    call.socket = try_connect_unix(call.address.unix_name, &no_listener);
    if (no_listener) return Outcome::refused;
    if (!call.socket.open()) return try_again(call, kCrowded);
    if (!same_user(call.socket)) return Outcome::other_user;
    fcntl(call.socket.get(), F_SETFL, fcntl(call.socket.get(), F_GETFL) | O_NONBLOCK);
    call.stage = Stage::challenge;
    return std::nullopt;
  }
  int error = 0;
  call.socket = start_connect_tcp(call.address.ip, call.address.port, error);
  if (error == ECONNREFUSED) return Outcome::refused;
  if (!call.socket.open()) return try_again(call, kUnreachable);
  call.stage = Stage::connecting;
  return std::nullopt;
}

Dialer::Progress Dialer::advance(Call& call) {
  if (call.stage != Stage::connecting) return read_message(call);
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(call.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == ECONNREFUSED) return Outcome::refused;
  if (error != 0) return try_again(call, kUnreachable);
  keep_alive(call.socket);
  call.stage = Stage::challenge;
  return std::nullopt;
}

Credentials Dialer::credentials_for(int rank) const {
  Credentials credentials = credentials_;
  credentials.acceptor = rank;
  return credentials;
}

// Reads no byte beyond the handshake: messages of the connection follow.
Dialer::Progress Dialer::read_message(Call& call) {
  Verdict verdict{};
  const bool challenged = call.stage == Stage::challenge;
  const std::size_t wanted = challenged ? sizeof(call.challenge) : sizeof(verdict);
  char buffer[std::max(sizeof(Challenge), sizeof(Verdict))];
  const ssize_t got = recv(call.socket.get(), buffer, wanted - call.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return std::nullopt;
  }
  if (got <= 0) return try_again(call, kCrowded);
  call.received.append(buffer, static_cast<std::size_t>(got));
  if (call.received.size() < wanted) return std::nullopt;
  const Credentials credentials = credentials_for(call.rank);
  if (challenged) {
    std::memcpy(&call.challenge, call.received.data(), wanted);
    call.received.clear();
    if (!is_challenge(call.challenge)) return Outcome::stranger;
    call.reply = make_reply(credentials, rank_, call.challenge);
    const auto sent = send_some(call.socket, &call.reply, sizeof(call.reply));
    if (!sent || *sent != sizeof(call.reply)) {
      return try_again(call, kCrowded);
    }
    call.stage = Stage::verdict;
    return std::nullopt;
  }
  std::memcpy(&verdict, call.received.data(), wanted);
  return verify_verdict(credentials, call.challenge, call.reply, verdict) ? Outcome::connected
                                                                          : Outcome::stranger;
}

}  // namespace tessera::comm
