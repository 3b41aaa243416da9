#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "tessera/core/crypto.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// [Note: handshake]
// The acceptor sends a challenge of 32 random bytes. The caller replies with its rank, 32 random
// bytes of its own and a proof. If the proof is right, the acceptor sends its own proof. A proof is
// the HMAC-SHA256, with the job's secret as key, of the side, the purpose of the connection, the
// run, its size, both ranks, and the random bytes of both sides. So a recorded proof is invalid on
// any other connection, and a caller without the secret receives only a challenge. Only the start
// of a connection is protected: later messages are neither encrypted nor authenticated.

// Values that must be equal on both sides.
struct Credentials {
  enum class Purpose : std::uint32_t { store = 1, peer = 2 };
  Purpose purpose = Purpose::peer;
  std::string secret{};
  std::string run{};
  int size = 1;
  int acceptor = -1;  // the rank that accepts; -1 is the store
};

struct Challenge {
  std::array<char, 8> magic;
  Digest nonce;
};
struct Reply {
  std::int32_t rank;
  Digest nonce;
  Digest proof;
};
struct Verdict {
  std::uint32_t accepted;  // 1, or 0 and no proof
  Digest proof;
};

Challenge make_challenge();
// Returns whether the bytes come from an acceptor of this protocol version.
bool is_challenge(const Challenge& challenge);
Reply make_reply(const Credentials& credentials, int rank, const Challenge& challenge);
Verdict verify_reply(const Credentials& credentials, const Challenge& challenge,
                     const Reply& reply);
bool verify_verdict(const Credentials& credentials, const Challenge& challenge, const Reply& reply,
                    const Verdict& verdict);

// Runs the caller's side over a blocking socket.
enum class HandshakeResult {
  accepted,
  closed,   // the other side closed the connection, or the time was over
  refused,  // the acceptor rejected the proof
  stranger  // the acceptor does not have the secret
};
HandshakeResult run_handshake(const Fd& socket, const Credentials& credentials, int rank,
                              std::chrono::steady_clock::time_point end);

}  // namespace tessera::comm
