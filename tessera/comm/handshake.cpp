#include "tessera/comm/handshake.h"

#include <algorithm>
#include <cstring>

#include "tessera/comm/secret.h"
#include "tessera/comm/socket.h"

namespace tessera::comm {
namespace {

constexpr std::array<char, 8> kMagic = {'t', 'e', 's', 's', 'e', 'r', 'a', '1'};

enum class Side : std::uint32_t { acceptor = 1, caller = 2 };

Digest random_digest() {
  const std::string bytes = random_bytes(sizeof(Digest));
  Digest digest;
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

template <typename T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// All fields but the run have a fixed size, so two handshakes cannot have the same text.
Digest proof(Side side, const Credentials& credentials, std::int32_t caller,
             const Digest& acceptor_nonce, const Digest& caller_nonce) {
  std::string text(kMagic.begin(), kMagic.end());
  append(text, side);
  append(text, credentials.purpose);
  append(text, static_cast<std::int32_t>(credentials.size));
  append(text, static_cast<std::int32_t>(credentials.acceptor));
  append(text, caller);
  append(text, acceptor_nonce);
  append(text, caller_nonce);
  text += credentials.run;
  return hmac_sha256(credentials.secret, text);
}

}  // namespace

Challenge make_challenge() { return {kMagic, random_digest()}; }

bool is_challenge(const Challenge& challenge) { return challenge.magic == kMagic; }

Reply make_reply(const Credentials& credentials, int rank, const Challenge& challenge) {
  Reply reply{rank, random_digest(), {}};
  reply.proof = proof(Side::caller, credentials, rank, challenge.nonce, reply.nonce);
  return reply;
}

Verdict verify_reply(const Credentials& credentials, const Challenge& challenge,
                     const Reply& reply) {
  const Digest wanted = proof(Side::caller, credentials, reply.rank, challenge.nonce, reply.nonce);
  if (reply.rank < 0 || reply.rank >= credentials.size ||
      !equal_in_constant_time(wanted, reply.proof)) {
    return {0, {}};
  }
  return {1, proof(Side::acceptor, credentials, reply.rank, challenge.nonce, reply.nonce)};
}

bool verify_verdict(const Credentials& credentials, const Challenge& challenge, const Reply& reply,
                    const Verdict& verdict) {
  const Digest wanted =
      proof(Side::acceptor, credentials, reply.rank, challenge.nonce, reply.nonce);
  return verdict.accepted == 1 && equal_in_constant_time(wanted, verdict.proof);
}

HandshakeResult run_handshake(const Fd& socket, const Credentials& credentials, int rank,
                              std::chrono::steady_clock::time_point end) {
  Challenge challenge{};
  if (!receive_all(socket, &challenge, sizeof(challenge), end)) return HandshakeResult::closed;
  if (!is_challenge(challenge)) return HandshakeResult::stranger;
  const Reply reply = make_reply(credentials, rank, challenge);
  if (!send_all(socket, &reply, sizeof(reply))) return HandshakeResult::closed;
  Verdict verdict{};
  if (!receive_all(socket, &verdict, sizeof(verdict), end)) return HandshakeResult::closed;
  if (verdict.accepted == 0) return HandshakeResult::refused;
  return verify_verdict(credentials, challenge, reply, verdict) ? HandshakeResult::accepted
                                                                : HandshakeResult::stranger;
}

}  // namespace tessera::comm
