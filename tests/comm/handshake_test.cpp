// The handshake, and the acceptor that runs it.

#include "tessera/comm/handshake.h"

#include <gtest/gtest.h>

#include "tessera/comm/acceptor.h"
#include "tests/comm/strangers.h"

namespace tessera::comm {
namespace {

using namespace testing;

Credentials credentials(const std::string& secret) {
  return {Credentials::Purpose::peer, secret, "run 1", 4, 0};
}

TEST(Handshake, SucceedsWithTheSameSecret) {
  const Credentials ours = credentials(random_secret());
  const Challenge challenge = make_challenge();
  const Reply reply = make_reply(ours, 3, challenge);
  const Verdict verdict = verify_reply(ours, challenge, reply);
  EXPECT_EQ(verdict.accepted, 1u);
  EXPECT_TRUE(verify_verdict(ours, challenge, reply, verdict));
}

TEST(Handshake, RejectsDifferentCredentials) {
  const Credentials ours = credentials(random_secret());
  std::vector<Credentials> others(5, ours);
  others[0].secret[0] ^= 1;
  others[1].run = "run 2";
  others[2].size = 5;
  others[3].acceptor = 1;
  others[4].purpose = Credentials::Purpose::store;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const Challenge challenge = make_challenge();
    const Reply reply = make_reply(others[i], 3, challenge);
    EXPECT_EQ(verify_reply(ours, challenge, reply).accepted, 0u) << i;
    // A client rejects an acceptor with different credentials.
    const Verdict verdict = verify_reply(others[i], challenge, reply);
    ASSERT_EQ(verdict.accepted, 1u);
    EXPECT_FALSE(verify_verdict(ours, challenge, make_reply(ours, 3, challenge), verdict)) << i;
  }
  const Challenge challenge = make_challenge();
  Reply reply = make_reply(ours, 3, challenge);
  reply.rank = 2;  // another rank
  EXPECT_EQ(verify_reply(ours, challenge, reply).accepted, 0u);
  for (const int rank : {-1, 4}) {
    EXPECT_EQ(verify_reply(ours, challenge, make_reply(ours, rank, challenge)).accepted, 0u)
        << rank;
  }
}

TEST(Handshake, RejectsReplayedMessages) {
  const Credentials ours = credentials(random_secret());
  const Challenge then = make_challenge();
  const Reply reply = make_reply(ours, 3, then);
  const Verdict verdict = verify_reply(ours, then, reply);
  const Challenge now = make_challenge();
  EXPECT_EQ(verify_reply(ours, now, reply).accepted, 0u);
  EXPECT_FALSE(verify_verdict(ours, then, make_reply(ours, 3, then), verdict));
  // Our own proof, sent back to us, is rejected too.
  Reply mirrored = reply;
  mirrored.proof = verdict.proof;
  EXPECT_EQ(verify_reply(ours, then, mirrored).accepted, 0u);
}

// Acceptor at a free loopback port.
class Server {
 public:
  explicit Server(const Credentials& credentials, Acceptor::Limits limits = {})
      : acceptor_(listeners(port_), credentials, limits) {}

  Fd call() const { return connect_tcp({"127.0.0.1"}, port_, kHang); }

  // Serves until a connection is accepted or `done` returns true.
  std::vector<Accepted> serve(const std::function<bool()>& done = [] { return false; }) {
    for (const auto end = hang(); std::chrono::steady_clock::now() < end && !done();) {
      std::vector<pollfd> polls;
      acceptor_.add_to(polls);
      poll(polls.data(), polls.size(), 5);
      auto accepted = acceptor_.act_on(polls);
      if (!accepted.empty()) return accepted;
    }
    return {};
  }

  std::size_t pending() const { return acceptor_.pending(); }

 private:
  static std::vector<Fd> listeners(std::uint16_t& port) {
    std::vector<Fd> result;
    result.push_back(listen_tcp("127.0.0.1", port));
    return result;
  }
  std::uint16_t port_ = 0;
  Acceptor acceptor_;
};

std::future<HandshakeResult> connect_to(const Server& server, const Credentials& credentials,
                                        int rank) {
  return std::async(std::launch::async, [&server, credentials, rank] {
    return run_handshake(server.call(), credentials, rank, hang());
  });
}

TEST(Acceptor, SilentConnectionsDoNotDelayOthers) {
  const Credentials ours = credentials(random_secret());
  Server server(ours);
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(server.call());
  auto caller = connect_to(server, ours, 2);
  const auto accepted = server.serve();
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_EQ(accepted[0].rank, 2);
  EXPECT_EQ(caller.get(), HandshakeResult::accepted);
  for (const Fd& socket : silent) EXPECT_FALSE(is_closed(socket)) << "the caller waited for it";
}

TEST(Acceptor, LimitsUnauthenticatedConnections) {
  const Credentials ours = credentials(random_secret());
  Server server(ours, {8, std::chrono::hours(1)});
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(server.call());
  EXPECT_TRUE(server.serve([&] { return is_closed(silent[87]); }).empty());
  EXPECT_TRUE(is_closed(silent[87])) << "the oldest connections must be closed";
  EXPECT_EQ(server.pending(), 8u + 4u);
  auto caller = connect_to(server, ours, 1);
  EXPECT_EQ(server.serve().size(), 1u);
  EXPECT_EQ(caller.get(), HandshakeResult::accepted);
}

// Ranks listen for the life of a large job: strangers must not use up their descriptors.
TEST(Acceptor, LimitsUnprovedConnectionsOfLargeJobs) {
  Credentials ours = credentials(random_secret());
  ours.size = 100'000;
  Server server(ours, {8, std::chrono::hours(1)});
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(server.call());
  EXPECT_TRUE(server.serve([&] { return is_closed(silent[27]); }).empty());
  EXPECT_EQ(server.pending(), 8u + 64u);
}

TEST(Acceptor, ClosesSilentConnectionsAfterTheTimeout) {
  Server server(credentials("secret"), {8, 1ms});
  const Fd silent = server.call();
  server.serve([&] { return is_closed(silent); });
  EXPECT_TRUE(is_closed(silent));
}

TEST(Acceptor, SendsRejectedClientsAReason) {
  Server server(credentials("one secret of 16 b"));
  auto caller = connect_to(server, credentials("another secret"), 1);
  const auto over = [&] { return caller.wait_for(0s) == std::future_status::ready; };
  EXPECT_TRUE(server.serve(over).empty());
  EXPECT_EQ(caller.get(), HandshakeResult::refused);
}

TEST(Acceptor, AcceptsAReplySentByteByByte) {
  const Credentials ours = credentials(random_secret());
  Server server(ours);
  const Fd socket = server.call();
  auto bytes = std::async(std::launch::async, [&] {
    Challenge challenge{};
    if (!receive_all(socket, &challenge, sizeof(challenge), hang())) return false;
    const Reply reply = make_reply(ours, 3, challenge);
    for (std::size_t i = 0; i < sizeof(reply); ++i) {
      if (!send_all(socket, reinterpret_cast<const char*>(&reply) + i, 1)) return false;
    }
    return true;
  });
  const auto accepted = server.serve();
  EXPECT_TRUE(bytes.get());
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_EQ(accepted[0].rank, 3);
}

}  // namespace
}  // namespace tessera::comm
