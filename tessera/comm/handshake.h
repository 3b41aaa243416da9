#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "tessera/core/crypto.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// [Note: handshake]
// The acceptor speaks first: a challenge, 32 random bytes. The caller answers with its rank, 32
// random bytes of its own and a proof; the acceptor, if the proof is right, with a proof of its
// own. A proof is HMAC-SHA256, under the job's secret, of everything that makes this conversation
// this one: whose proof it is, what the connection is for, the run, its size, both ranks, and both
// parties' random bytes. So a proof that was overheard is worth nothing on any other connection,
// and a stranger who calls learns nothing but a challenge. Only the opening of a connection is
// protected: what follows is neither encrypted nor authenticated.

// What both sides must have in common.
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
Reply make_reply(const Credentials& credentials, int rank, const Challenge& challenge);
Verdict verify_reply(const Credentials& credentials, const Challenge& challenge,
                     const Reply& reply);
bool verify_verdict(const Credentials& credentials, const Challenge& challenge, const Reply& reply,
                    const Verdict& verdict);

// The caller's side, over a blocking socket.
enum class HandshakeResult {
  accepted,
  closed,   // the other side ended the connection, or the time was over
  refused,  // it says that we do not belong to it
  stranger  // it does not know the secret itself
};
HandshakeResult shake_hands(const Fd& socket, const Credentials& credentials, int rank,
                            std::chrono::steady_clock::time_point end);

}  // namespace tessera::comm
