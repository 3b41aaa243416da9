#include "tessera/comm/handshake.h"

#include <algorithm>
#include <cstring>

#include "tessera/comm/secret.h"
#include "tessera/comm/socket.h"

namespace tessera::comm {
namespace {

constexpr std::array<char, 8> kGreeting = {'t', 'e', 's', 's', 'e', 'r', 'a', '1'};

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

// Everything but the run has a fixed size, so no two conversations have the same text.
Digest proof(Side side, const Invitation& invitation, std::int32_t caller,
             const Digest& acceptor_nonce, const Digest& caller_nonce) {
  std::string text(kGreeting.begin(), kGreeting.end());
  append(text, side);
  append(text, invitation.purpose);
  append(text, static_cast<std::int32_t>(invitation.size));
  append(text, static_cast<std::int32_t>(invitation.acceptor));
  append(text, caller);
  append(text, acceptor_nonce);
  append(text, caller_nonce);
  text += invitation.run;
  return hmac_sha256(invitation.secret, text);
}

}  // namespace

Challenge make_challenge() { return {kGreeting, random_digest()}; }

Reply make_reply(const Invitation& invitation, int rank, const Challenge& challenge) {
  Reply reply{rank, random_digest(), {}};
  reply.proof = proof(Side::caller, invitation, rank, challenge.nonce, reply.nonce);
  return reply;
}

Verdict judge(const Invitation& invitation, const Challenge& challenge, const Reply& reply) {
  const Digest wanted = proof(Side::caller, invitation, reply.rank, challenge.nonce, reply.nonce);
  if (reply.rank < 0 || reply.rank >= invitation.size ||
      !equal_in_constant_time(wanted, reply.proof)) {
    return {0, {}};
  }
  return {1, proof(Side::acceptor, invitation, reply.rank, challenge.nonce, reply.nonce)};
}

bool is_genuine(const Invitation& invitation, const Challenge& challenge, const Reply& reply,
                const Verdict& verdict) {
  const Digest wanted = proof(Side::acceptor, invitation, reply.rank, challenge.nonce, reply.nonce);
  return verdict.welcome == 1 && equal_in_constant_time(wanted, verdict.proof);
}

Greeted greet(const Fd& socket, const Invitation& invitation, int rank,
              std::chrono::steady_clock::time_point end) {
  Challenge challenge{};
  if (!receive_all(socket, &challenge, sizeof(challenge), end)) return Greeted::closed;
  if (challenge.greeting != kGreeting) return Greeted::stranger;
  const Reply reply = make_reply(invitation, rank, challenge);
  if (!send_all(socket, &reply, sizeof(reply))) return Greeted::closed;
  Verdict verdict{};
  if (!receive_all(socket, &verdict, sizeof(verdict), end)) return Greeted::closed;
  if (verdict.welcome == 0) return Greeted::refused;
  return is_genuine(invitation, challenge, reply, verdict) ? Greeted::yes : Greeted::stranger;
}

}  // namespace tessera::comm
