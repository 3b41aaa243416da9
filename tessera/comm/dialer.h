#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/handshake.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// Address at which a rank accepts connections.
struct PeerAddress {
  std::string unix_name{};  // name of its Unix socket; empty for ranks of other hosts
  std::string ip{};         // numeric
  std::uint16_t port = 0;
};

// Opens connections to other ranks and runs their handshakes ([Note: handshake]) concurrently, so
// that a rank that does not answer delays no other. The counterpart of Acceptor. An attempt has no
// deadline: a stopped rank answers when it continues, and a crowded one is dialed again.
//
// Runs in the caller's poll loop: add_to() appends descriptors, act_on() receives the results.
class Dialer {
 public:
  enum class Outcome : std::uint8_t {
    connected,
    refused,    // no process listens at the address
    stranger,   // secret, run or size differ
    other_user  // the process belongs to another user
  };
  struct Result {
    int rank = -1;
    Outcome outcome = Outcome::refused;
    Fd socket;  // does not block
  };

  Dialer(int rank, Credentials credentials);

  void dial(int rank, PeerAddress address);
  void cancel(int rank);
  // Cancels unless the rank may already have accepted the connection: it would treat the end of an
  // accepted connection as a death. Returns whether no dial remains.
  bool cancel_unless_accepted(int rank);
  // Returns the text of an error for an outcome other than `connected`.
  std::string explain(const Result& result) const;

  void add_to(std::vector<pollfd>& polls) const;
  // Throws Error if the process cannot open another descriptor.
  std::vector<Result> act_on(std::span<const pollfd> polls);
  // For poll(): milliseconds until something is due, -1 for never.
  int wait_ms() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : std::uint8_t { pause, connecting, challenge, verdict };
  struct Call {
    int rank = -1;
    PeerAddress address;
    Stage stage = Stage::pause;
    Clock::time_point resume{};  // end of the pause
    Fd socket;
    Challenge challenge{};
    Reply reply{};
    std::string received;
  };
  using Progress = std::optional<Outcome>;  // nullopt: not finished

  Progress begin(Call& call);
  Progress advance(Call& call);
  Progress read_message(Call& call);
  static Progress try_again(Call& call, std::chrono::milliseconds pause);
  Credentials credentials_for(int rank) const;

  const int rank_;
  const Credentials credentials_;
  std::deque<Call> calls_;
};

}  // namespace tessera::comm
