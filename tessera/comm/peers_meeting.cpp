#include "tessera/comm/peers_meeting.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/comm/reception.h"
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
struct Card {
  std::string token;
  std::string host;
};
struct Place {
  std::uint16_t port = 0;
  std::string address;
};

[[noreturn]] void refuse(const std::string& key, int rank, const std::string& got,
                         const std::string& wanted) {
  throw DataError(str("rank ", rank, " left ", quote(got), " under ", quote(key),
                      " in the store; wanted ", wanted, ". Who else can write to it?"));
}

Card parse_card(const std::string& key, int rank, const std::string& text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const bool right =
      text.size() > kTokenDigits + 1 && text.size() <= kTokenDigits + 1 + kLongestHostKey &&
      std::all_of(text.begin(), text.begin() + kTokenDigits, is_digit) && text[kTokenDigits] == ' ';
  if (!right) refuse(key, rank, text, "32 hexadecimal digits, a blank and the key of its host");
  return {text.substr(0, kTokenDigits), text.substr(kTokenDigits + 1)};
}

Place parse_place(const std::string& key, int rank, const std::string& text) {
  Place place;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, place.port);
  in6_addr parsed{};
  if (error == std::errc() && place.port > 0 && rest != end && *rest == ' ') {
    place.address.assign(rest + 1, end);
    if (inet_pton(AF_INET, place.address.c_str(), &parsed) == 1 ||
        inet_pton(AF_INET6, place.address.c_str(), &parsed) == 1) {
      return place;
    }
  }
  refuse(key, rank, text, "a port from 1 to 65535, a blank and a numeric address");
}

std::string unix_name(const std::string& token) { return "tessera-" + token; }

// A connection to a lower rank, tried again while that one is too crowded to keep us.
class Caller {
 public:
  Caller(int own, int other, Invitation invitation, Clock::time_point end)
      : own_(own), other_(other), invitation_(std::move(invitation)), end_(end) {
    invitation_.acceptor = other;
  }

  Fd call_unix(const std::string& name) const {
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

  Fd call_tcp(const Place& place) const {
    return call([&] { return connect_tcp({place.address}, place.port, left()); });
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
      const Greeted greeted =
          socket.open() ? greet(socket, invitation_, own_, end_) : Greeted::closed;
      if (greeted == Greeted::yes) return socket;
      if (greeted != Greeted::closed) {
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
  Invitation invitation_;
  const Clock::time_point end_;
};

// Accepts every higher rank; strangers are turned away and delay nobody.
void accept_others(Meeting& met, Reception& reception, int rank, int size, Clock::time_point end) {
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
    reception.add_to(polls);
    const int wait = reception.wait_ms();
    if (poll(polls.data(), polls.size(), wait < 0 ? 200 : std::min(wait, 200)) < 0) continue;
    for (Guest& guest : reception.act_on(polls)) {
      if (guest.rank <= rank) continue;
      Fd& seat = met.sockets[static_cast<std::size_t>(guest.rank)];
      if (seat.open()) continue;  // taken
      if (!met.same_host[static_cast<std::size_t>(guest.rank)]) keep_alive(guest.socket);
      seat = std::move(guest.socket);
      --missing;
    }
  }
}

}  // namespace

Meeting meet_peers(Store& store, int rank, int size, const PeersOptions& options) {
  const auto end = Clock::now() + options.timeout;
  const auto read = [&](const std::string& key) {
    return store.get(
        key, std::max(std::chrono::milliseconds(1),
                      std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now())));
  };
  Meeting met;
  met.sockets.resize(static_cast<std::size_t>(size));
  const std::string token = random_token();
  const std::string here = host_key();
  std::vector<Fd> listeners;
  listeners.push_back(listen_unix(unix_name(token), SOMAXCONN));
  store.set(str("peers/", rank), token + " " + here);
  std::vector<std::string> tokens;
  bool alone = true;
  for (int r = 0; r < size; ++r) {
    const std::string key = str("peers/", r);
    const Card card = parse_card(key, r, read(key));
    tokens.push_back(card.token);
    met.same_host.push_back(card.host == here);
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
  Invitation invitation{Invitation::Purpose::peer, options.secret, options.run, size, rank};
  for (int r = 0; r < rank; ++r) {
    const auto index = static_cast<std::size_t>(r);
    const Caller caller(rank, r, invitation, end);
    if (met.same_host[index]) {
      met.sockets[index] = caller.call_unix(unix_name(tokens[index]));
    } else {
      const std::string key = str("peers/tcp/", r);
      met.sockets[index] = caller.call_tcp(parse_place(key, r, read(key)));
    }
    const int fd = met.sockets[index].get();
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  Reception reception(std::move(listeners), std::move(invitation));
  accept_others(met, reception, rank, size, end);
  return met;
}

}  // namespace tessera::comm
