// Processes that do not belong to a job cannot join it and cannot prevent it from starting.

#include <gtest/gtest.h>

#include "tessera/comm/handshake.h"
#include "tessera/comm/peers_rendezvous.h"
#include "tests/comm/strangers.h"

namespace tessera::comm {
namespace {

using namespace testing;

PeersOptions options_with(const std::string& secret) {
  PeersOptions options;
  options.timeout = kHang;
  options.secret = secret;
  options.run = "run";
  return options;
}

// Starts rank 0, which reads the contact of rank 1 and accepts connections before rank 1 starts.
std::future<std::shared_ptr<Peers>> start_rank_zero(Store& store, const PeersOptions& options) {
  store.set("peers/1", std::string(32, '0') + " " + host_key());
  return start_rank(store, 0, 2, options);
}

// Expects that all ranks of the job are connected and share memory.
void expect_complete(std::vector<std::future<std::shared_ptr<Peers>>> ranks) {
  std::vector<std::shared_ptr<Peers>> peers;
  for (auto& rank : ranks) peers.push_back(rank.get());
  std::vector<int> members;
  for (std::size_t r = 0; r < peers.size(); ++r) members.push_back(static_cast<int>(r));
  const auto segment = peers[0]->share("world", members, 4096, Pages::reserved, kHang);
  segment->data()[7] = std::byte{42};
  for (std::size_t r = 1; r < peers.size(); ++r) {
    EXPECT_EQ(peers[r]->share("world", members, 4096, Pages::reserved, kHang)->data()[7],
              std::byte{42});
    EXPECT_EQ(peers[0]->state(static_cast<int>(r)), PeerState::alive);
  }
}

// Receives until the connection ends. Returns true if a descriptor was received.
bool was_given_memory(const Fd& socket) {
  for (;;) {
    char buffer[256];
    iovec part{buffer, sizeof(buffer)};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket.get(), &message, 0);
    if (got > 0 && CMSG_FIRSTHDR(&message) != nullptr) return true;
    if (got <= 0) return false;
  }
}

TEST(Stranger, IsRejectedEvenIfItKnowsAllNames) {
  const PeersOptions options = options_with(random_secret());
  MemoryStore store;  // readable by the stranger too
  std::vector<std::future<std::shared_ptr<Peers>>> ranks;
  ranks.push_back(start_rank_zero(store, options));
  const std::string name = socket_name(store, 0);
  std::vector<Fd> strangers;
  // Sends the name of the socket as the proof, and the number of rank 1.
  strangers.push_back(call_unix(name));
  const std::string token = name.substr(8) + std::string("\1\0\0\0", 4);
  EXPECT_TRUE(send_all(strangers.back(), token.data(), token.size()));
  // Sends garbage of the size of a reply to the challenge, and more.
  for (const std::size_t bytes : {sizeof(Reply), std::size_t{5000}}) {
    strangers.push_back(call_unix(name));
    const std::string garbage(bytes, '\1');
    EXPECT_TRUE(send_all(strangers.back(), garbage.data(), garbage.size()));
  }
  // A valid handshake with a guessed secret.
  const Credentials guess{Credentials::Purpose::peer, name, "run", 2, 0};
  const Fd guesser = call_unix(name);
  EXPECT_EQ(run_handshake(guesser, guess, 1, hang()), HandshakeResult::refused);
  ranks.push_back(start_rank(store, 1, 2, options));
  expect_complete(std::move(ranks));
  for (const Fd& stranger : strangers) EXPECT_FALSE(was_given_memory(stranger));
}

TEST(Stranger, ARankWithAnotherSecretGetsAnErrorAndTheOthersContinue) {
  const PeersOptions options = options_with(random_secret());
  MemoryStore store;
  std::vector<std::future<std::shared_ptr<Peers>>> ranks;
  ranks.push_back(start_rank_zero(store, options));
  auto wrong = start_rank(store, 1, 2, options_with(random_secret()));
  const std::string text = message_of<PeerError>([&] { wrong.get(); });
  EXPECT_TRUE(contains(text, "rank 0 and rank 1 do not have the same secret")) << text;
  ranks.push_back(start_rank(store, 1, 2, options));
  expect_complete(std::move(ranks));
}

// A process listened at the address of rank 0, recorded the reply of rank 1, and replays it to the
// real rank 0.
TEST(Stranger, AReplayedHandshakeIsRefused) {
  const PeersOptions options = options_with(random_secret());
  Reply overheard{};
  {
    MemoryStore store;
    const std::string token = random_token();
    const Fd false_rank = listen_unix("tessera-" + token, 4);
    write_table(store, "peers/hosts", {"0", "0"});
    write_table(store, "peers/host/0", {token, std::string(32, '0')});
    auto rank = start_rank(store, 1, 2, options);
    const Fd socket(accept4(false_rank.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Challenge challenge = make_challenge();
    EXPECT_TRUE(send_all(socket, &challenge, sizeof(challenge)));
    EXPECT_TRUE(receive_all(socket, &overheard, sizeof(overheard), hang()));
    Verdict verdict{1, overheard.proof};
    EXPECT_TRUE(send_all(socket, &verdict, sizeof(verdict)));
    message_of<PeerError>([&] { rank.get(); });  // the false rank 0 has no valid proof
  }
  MemoryStore store;
  std::vector<std::future<std::shared_ptr<Peers>>> ranks;
  ranks.push_back(start_rank_zero(store, options));
  const Fd socket = call_unix(socket_name(store, 0));
  Challenge challenge{};
  EXPECT_TRUE(receive_all(socket, &challenge, sizeof(challenge), hang()));
  EXPECT_TRUE(send_all(socket, &overheard, sizeof(overheard)));
  Verdict verdict{1, {}};
  EXPECT_TRUE(receive_all(socket, &verdict, sizeof(verdict), hang()));
  EXPECT_EQ(verdict.accepted, 0u);
  ranks.push_back(start_rank(store, 1, 2, options));
  expect_complete(std::move(ranks));
}

// A process of another user is rejected even if it has the secret, because ranks share memory.
TEST(Stranger, AnotherUserIsRejectedImmediately) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to run a process of another user";
  const PeersOptions options = options_with(random_secret());
  MemoryStore store;
  std::vector<std::future<std::shared_ptr<Peers>>> ranks;
  ranks.push_back(start_rank_zero(store, options));
  const std::string name = socket_name(store, 0);
  const Credentials ours{Credentials::Purpose::peer, options.secret, "run", 2, 0};
  const int result = as_nobody([&] {
    const Fd socket = call_unix(name);
    return static_cast<int>(run_handshake(socket, ours, 1, hang()));
  });
  EXPECT_EQ(result, static_cast<int>(HandshakeResult::closed));
  ranks.push_back(start_rank(store, 1, 2, options));
  expect_complete(std::move(ranks));
}

TEST(Stranger, SilentConnectionsDoNotPreventTheStart) {
  const PeersOptions options = options_with(random_secret());
  MemoryStore store;
  std::vector<std::future<std::shared_ptr<Peers>>> ranks;
  std::vector<Fd> silent;  // stay open until the job has started
  for (int r = 0; r < 2; ++r) {
    ranks.push_back(start_rank(store, r, 3, options));
    for (int i = 0; i < 20; ++i) silent.push_back(call_unix(socket_name(store, r)));
  }
  ranks.push_back(start_rank(store, 2, 3, options));
  expect_complete(std::move(ranks));
}

// Authenticated connection of rank 1 to rank 0, on which the test can send any bytes.
struct RawRank {
  explicit RawRank(const PeersOptions& options) {
    auto rank = start_rank_zero(store, options);
    socket = call_unix(socket_name(store, 0));
    const Credentials ours{Credentials::Purpose::peer, options.secret, options.run, 2, 0};
    EXPECT_EQ(run_handshake(socket, ours, 1, hang()), HandshakeResult::accepted);
    peers = rank.get();
  }
  MemoryStore store;
  Fd socket;
  std::shared_ptr<Peers> peers;
};

TEST(Frames, TooLongFrameEndsTheConnection) {
  RawRank raw(options_with(random_secret()));
  const std::uint32_t frame[2] = {2, 0xffffffffu};
  EXPECT_TRUE(send_all(raw.socket, frame, sizeof(frame)));
  EXPECT_TRUE(wait_until([&] { return raw.peers->state(1) == PeerState::dead; }));
}

TEST(Frames, LongFailureReportArrives) {
  const PeersOptions options = options_with(random_secret());
  MemoryStore store;
  auto first = start_rank(store, 0, 2, options);
  auto second = start_rank(store, 1, 2, options);
  const auto sender = first.get();
  const auto receiver = second.get();
  sender->report({Failure::Kind::peer, 0, 0, std::string(1'000'000, 'x')});
  EXPECT_TRUE(wait_until([&] { return receiver->failure().has_value(); }));
  EXPECT_TRUE(contains(receiver->failure()->text, "xxx"));
}

TEST(Contacts, RejectsInvalidKeysOfARank) {
  const std::vector<std::string> bad = {"",
                                        "short",
                                        std::string(32, 'a'),
                                        std::string(32, 'a') + " ",
                                        std::string(32, 'A') + " host",
                                        std::string(33, 'a') + " host",
                                        std::string("\0\xff", 2) + std::string(100, '\n'),
                                        std::string(32, 'a') + " " + std::string(1 << 20, 'h')};
  for (const std::string& text : bad) {
    MemoryStore store;
    store.set("peers/1", text);
    const std::string said =
        message_of<DataError>([&] { connect_peers(store, 0, 2, options_with("s")); });
    EXPECT_TRUE(contains(said, "Store key \"peers/1\" is ")) << said;
    EXPECT_LT(said.size(), 1000u);
  }
}

TEST(Contacts, RejectsInvalidAddresses) {
  for (const char* text :
       {"", "80", "80 ", "0 127.0.0.1", "65536 127.0.0.1", "-1 127.0.0.1", "80 nonsense",
        " 80 127.0.0.1", "80 127.0.0.1 x", "80x 127.0.0.1", "99999999999999999999 ::1"}) {
    MemoryStore store;
    store.set("peers/1", std::string(32, 'a') + " another host");
    store.set("peers/tcp/1", text);
    PeersOptions options = options_with("s");
    options.address = "127.0.0.1";
    const std::string said = message_of<DataError>([&] { connect_peers(store, 0, 2, options); });
    EXPECT_TRUE(contains(said, "Store key \"peers/tcp/1\" is ")) << said;
  }
}

// Tables that another process may have written in place of rank 0.
TEST(Contacts, RejectsInvalidTables) {
  const std::string token(32, 'a');
  struct Case {
    std::string key;
    std::string hosts = "1 0 1 ", tokens = "1 " + std::string(32, 'a'), tcp = "1 80@::1 81";
  };
  std::vector<Case> cases;
  for (const char* hosts : {"", "x", "0 0 1", "2000000 0 1", "1 0", "1 0 1 1", "1 0 -1", "1 0 2",
                            "1 0 1x", "1  0 1", "-1 0 1"}) {
    cases.push_back({.key = "peers/hosts", .hosts = hosts});
  }
  for (const std::string& tokens : {std::string("1 "), "1 " + token + "a",
                                    "1 " + token + " " + token, "1 " + std::string(32, 'A')}) {
    cases.push_back({.key = "peers/host/1", .tokens = tokens});
  }
  for (const char* tcp : {"1 80@::1", "1 80 81", "1 80@::1 0", "1 80@::1 81@x", "1 80@::1 65536"}) {
    cases.push_back({.key = "peers/tcp", .tcp = tcp});
  }
  for (const Case& one : cases) {
    MemoryStore store;
    store.set("peers/hosts", one.hosts);
    store.set("peers/host/1", one.tokens);
    store.set("peers/tcp", one.tcp);
    PeersOptions options = options_with("s");
    options.address = "127.0.0.1";
    const std::string said = message_of<DataError>([&] { connect_peers(store, 1, 2, options); });
    EXPECT_TRUE(contains(said, "Store key \"" + one.key + "\" is ")) << said;
  }
}

TEST(Contacts, LongTablesAreSplit) {
  MemoryStore store;
  write_table(store, "table", std::vector<std::string>(5000, std::string(40, 'x')));
  std::size_t bytes = 0;
  EXPECT_TRUE(store.get("table", kHang).starts_with("4 "));
  for (const char* key : {"table", "table/1", "table/2", "table/3"}) {
    const std::string part = store.get(key, kHang);
    EXPECT_LE(part.size() + sizeof(Digest), kLongestValue);
    bytes += part.size();
  }
  EXPECT_EQ(bytes, 5000u * 41 + 2);
}

TEST(Contacts, RanksOfOtherHostsConnectOverTcpToTheGivenAddress) {
  MemoryStore store;
  PeersOptions options = options_with(random_secret());
  options.address = "127.0.0.1";
  options.host = "one";
  auto first = start_rank(store, 0, 2, options);
  options.host = "other";
  auto second = start_rank(store, 1, 2, options);
  const auto a = first.get();
  const auto b = second.get();
  EXPECT_FALSE(a->same_host(1));
  EXPECT_TRUE(store.get("peers/tcp/0", kHang).ends_with(" 127.0.0.1"));
  b->report({Failure::Kind::peer, 1, 1, "over TCP"});
  EXPECT_TRUE(wait_until([&] { return a->failure().has_value(); }));
  EXPECT_EQ(a->failure()->text, "over TCP");
}

// Ranks listen as long as the job runs, and reject strangers as long.
TEST(Stranger, IsRejectedAfterTheStartToo) {
  const PeersOptions options = options_with(random_secret());
  MemoryStore store;
  std::vector<std::future<std::shared_ptr<Peers>>> ranks;
  for (int r = 0; r < 2; ++r) ranks.push_back(start_rank(store, r, 2, options));
  std::vector<std::shared_ptr<Peers>> peers;
  for (auto& rank : ranks) peers.push_back(rank.get());
  const std::string name = socket_name(store, 0);
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(call_unix(name));
  // A guessed secret, and a proof that was made for another connection.
  const Fd guesser = call_unix(name);
  EXPECT_EQ(run_handshake(guesser, {Credentials::Purpose::peer, "guess", "run", 2, 0}, 1, hang()),
            HandshakeResult::refused);
  const Credentials ours{Credentials::Purpose::peer, options.secret, "run", 2, 0};
  Reply overheard{};
  for (const bool replay : {false, true}) {
    const Fd socket = call_unix(name);
    Challenge challenge{};
    Verdict verdict{};
    EXPECT_TRUE(receive_all(socket, &challenge, sizeof(challenge), hang()));
    if (!replay) {
      overheard = make_reply(ours, 1, challenge);
      continue;  // not sent
    }
    EXPECT_TRUE(send_all(socket, &overheard, sizeof(overheard)));
    EXPECT_TRUE(receive_all(socket, &verdict, sizeof(verdict), hang()));
    EXPECT_EQ(verdict.accepted, 0u);
  }
  peers[0]->send_note(1, "topic", "still here");
  std::optional<std::string> note;
  EXPECT_TRUE(wait_until([&] { return (note = peers[1]->take_note(0, "topic")).has_value(); }));
  EXPECT_EQ(note, "still here");
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(peers[static_cast<std::size_t>(r)]->state(1 - r), PeerState::alive);
  }
}

}  // namespace
}  // namespace tessera::comm
