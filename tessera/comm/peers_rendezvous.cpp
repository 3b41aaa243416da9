#include "tessera/comm/peers_rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/comm/acceptor.h"
#include "tessera/comm/secret.h"
#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTokenDigits = 32;
constexpr std::size_t kLongestHostKey = 512;

// What a rank tells about itself: "token host-key", and where it listens for other hosts:
// "port address". Both come from outside and are believed only as far as they have this form.
struct Contact {
  std::string token;
  std::string host;
};
struct TcpAddress {
  std::uint16_t port = 0;
  std::string address;
};

[[noreturn]] void refuse(const std::string& key, int rank, const std::string& got,
                         const std::string& wanted) {
  throw DataError(str("rank ", rank, " left ", quote(got), " under ", quote(key),
                      " in the store; wanted ", wanted, ". Who else can write to it?"));
}

Contact parse_contact(const std::string& key, int rank, const std::string& text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const bool right =
      text.size() > kTokenDigits + 1 && text.size() <= kTokenDigits + 1 + kLongestHostKey &&
      std::all_of(text.begin(), text.begin() + kTokenDigits, is_digit) && text[kTokenDigits] == ' ';
  if (!right) refuse(key, rank, text, "32 hexadecimal digits, a blank and the key of its host");
  return {text.substr(0, kTokenDigits), text.substr(kTokenDigits + 1)};
}

TcpAddress parse_address(const std::string& key, int rank, const std::string& text) {
  TcpAddress where;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, where.port);
  in6_addr parsed{};
  if (error == std::errc() && where.port > 0 && rest != end && *rest == ' ') {
    where.address.assign(rest + 1, end);
    if (inet_pton(AF_INET, where.address.c_str(), &parsed) == 1 ||
        inet_pton(AF_INET6, where.address.c_str(), &parsed) == 1) {
      return where;
    }
  }
  refuse(key, rank, text, "a port from 1 to 65535, a blank and a numeric address");
}

std::string unix_name(const std::string& token) { return "tessera-" + token; }

// A connection to a lower rank, tried again while that one is too crowded to keep us.
class Connector {
 public:
  Connector(int own, int other, Credentials credentials, Clock::time_point end)
      : own_(own), other_(other), credentials_(std::move(credentials)), end_(end) {
    credentials_.acceptor = other;
  }

  Fd connect_unix(const std::string& name) const {
    return call([&] {
      bool nobody = false;
      Fd socket = try_connect_unix(name, &nobody);
      if (nobody)
        throw PeerError(str("rank ", other_, " is gone: nobody listens for ", own_), other_);
      if (socket.open() && !same_user(socket)) {
        throw PeerError(str("who listens for rank ", other_, " is a process of another user; all ",
                            "ranks of a job must run as one user"),
                        other_);
      }
      return socket;
    });
  }

  Fd connect_to(const TcpAddress& where) const {
    return call([&] { return connect_tcp({where.address}, where.port, left()); });
  }

 private:
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()));
  }

  template <typename Connect>
  Fd call(const Connect& connect) const {
    while (Clock::now() < end_) {
      Fd socket = connect();
      const HandshakeResult result =
          socket.open() ? shake_hands(socket, credentials_, own_, end_) : HandshakeResult::closed;
      if (result == HandshakeResult::accepted) return socket;
      if (result != HandshakeResult::closed) {
        throw PeerError(str("rank ", other_, " and rank ", own_,
                            " do not have the same secret, run or size; give all ranks the same"),
                        other_);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw PeerError(str("rank ", other_, " did not answer rank ", own_, " in time"), other_);
  }

  const int own_;
  const int other_;
  Credentials credentials_;
  const Clock::time_point end_;
};

// The contacts that ranks leave in the store, in rank order. Reports missing ranks while it waits.
class Contacts {
 public:
  Contacts(Store& store, int rank, int size, Clock::time_point end, JoinNotice notice)
      : store_(store), rank_(rank), size_(size), end_(end), notice_(notice) {}

  std::string wait_for(int other) {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
      if (left <= notice_.left()) {
        return store_.get(key(other), std::max(left, std::chrono::milliseconds(1)));
      }
      if (const auto text = look_up(other, notice_.left())) return *text;
      if (notice_.is_due()) report(other);
    }
  }

  static std::string key(int rank) { return str("peers/", rank); }

 private:
  static constexpr std::chrono::milliseconds kLook{100};
  static constexpr std::size_t kMostMissing = 16;  // looked up for one report

  // Nothing if the key does not come in time.
  std::optional<std::string> look_up(int other, std::chrono::milliseconds timeout) {
    const auto begun = Clock::now();
    try {
      return store_.get(key(other), timeout);
    } catch (const Error&) {
      // Early means for another reason than time. A store may round its waits.
      if (Clock::now() - begun < timeout - timeout / 10) throw;
      return std::nullopt;
    }
  }

  // All ranks wait for the same ones; the lowest that has joined reports.
  void report(int first_missing) {
    std::vector<int> joined, missing{first_missing};
    for (int r = 0; r < size_ && missing.size() < kMostMissing; ++r) {
      if (r == first_missing) continue;
      const bool here = r < first_missing || r == rank_ || look_up(r, kLook).has_value();
      if (here && joined.empty() && r != rank_) return;
      (here ? joined : missing).push_back(r);
    }
    std::sort(missing.begin(), missing.end());
    const bool more = missing.size() == kMostMissing;
    if (more && joined.empty()) joined.push_back(rank_);
    notice_.report_missing(rank_, size_, joined, missing, more);
  }

  Store& store_;
  const int rank_, size_;
  const Clock::time_point end_;
  JoinNotice notice_;
};

// Accepts every higher rank; strangers are turned away and delay nobody.
void accept_others(PeerSockets& met, Acceptor& acceptor, int rank, int size,
                   Clock::time_point end) {
  const auto absent = [&] {
    std::vector<std::string> ranks;
    for (int r = rank + 1; r < size; ++r) {
      if (!met.sockets[static_cast<std::size_t>(r)].open()) ranks.push_back(str(r));
    }
    return ranks;
  };
  for (int missing = size - 1 - rank; missing > 0;) {
    if (Clock::now() > end) {
      throw PeerError(
          str("rank ", rank, " waited in vain for rank ", join(absent(), ", "), " to connect"));
    }
    std::vector<pollfd> polls;
    acceptor.add_to(polls);
    const int wait = acceptor.wait_ms();
    if (poll(polls.data(), polls.size(), wait < 0 ? 200 : std::min(wait, 200)) < 0) continue;
    for (Accepted& peer : acceptor.act_on(polls)) {
      if (peer.rank <= rank) continue;
      Fd& socket = met.sockets[static_cast<std::size_t>(peer.rank)];
      if (socket.open()) continue;  // taken
      if (!met.same_host[static_cast<std::size_t>(peer.rank)]) keep_alive(peer.socket);
      socket = std::move(peer.socket);
      --missing;
    }
  }
}

}  // namespace

PeerSockets connect_sockets(Store& store, int rank, int size, const PeersOptions& options) {
  const auto end = Clock::now() + options.timeout;
  const auto read = [&](const std::string& key) {
    return store.get(
        key, std::max(std::chrono::milliseconds(1),
                      std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now())));
  };
  PeerSockets met;
  met.sockets.resize(static_cast<std::size_t>(size));
  const std::string token = random_token();
  const std::string here = host_key();
  std::vector<Fd> listeners;
  listeners.push_back(listen_unix(unix_name(token), SOMAXCONN));
  store.set(str("peers/", rank), token + " " + here);
  std::vector<std::string> tokens;
  bool alone = true;
  Contacts contacts(store, rank, size, end, JoinNotice(options.notice));
  for (int r = 0; r < size; ++r) {
    const Contact contact = parse_contact(Contacts::key(r), r, contacts.wait_for(r));
    tokens.push_back(contact.token);
    met.same_host.push_back(contact.host == here);
    alone = alone && met.same_host.back();
  }
  if (!alone) {
    if (options.address.empty()) {
      throw UsageError(str("the ranks are on several hosts, but rank ", rank,
                           " was not told at which address to listen for the others"));
    }
    std::uint16_t port = 0;
    listeners.push_back(listen_tcp(options.address, port));
    store.set(str("peers/tcp/", rank), str(port, " ", options.address));
  }
  Credentials credentials{Credentials::Purpose::peer, options.secret, options.run, size, rank};
  for (int r = 0; r < rank; ++r) {
    const auto index = static_cast<std::size_t>(r);
    const Connector connector(rank, r, credentials, end);
    if (met.same_host[index]) {
      met.sockets[index] = connector.connect_unix(unix_name(tokens[index]));
    } else {
      const std::string key = str("peers/tcp/", r);
      met.sockets[index] = connector.connect_to(parse_address(key, r, read(key)));
    }
    const int fd = met.sockets[index].get();
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  Acceptor acceptor(std::move(listeners), std::move(credentials));
  accept_others(met, acceptor, rank, size, end);
  return met;
}

}  // namespace tessera::comm
