// The store that a launcher hosts, and its access control.

#include <gtest/gtest.h>

#include <atomic>

#include "tessera/comm/generation.h"
#include "tessera/comm/handshake.h"
#include "tessera/comm/store_client.h"
#include "tessera/comm/store_server.h"
#include "tessera/comm/store_wire.h"
#include "tests/comm/strangers.h"

namespace tessera::comm {
namespace {

using namespace testing;

struct Job {
  explicit Job(int ranks, std::size_t most_bytes = 1 << 20)
      : size(ranks), server({"127.0.0.1", 0, secret, "run", ranks, most_bytes}) {}

  StoreClientOptions client(int rank) const {
    return {{"127.0.0.1"}, server.port(), secret, "run", rank, size, kHang};
  }
  Fd call() const {
    return connect_tcp({"127.0.0.1"}, static_cast<std::uint16_t>(server.port()), kHang);
  }
  // Returns an authenticated connection on which the test can send any bytes.
  Fd member() const {
    Fd socket = call();
    EXPECT_EQ(
        run_handshake(socket, {Credentials::Purpose::store, secret, "run", size, -1}, 0, hang()),
        HandshakeResult::accepted);
    return socket;
  }

  const int size;
  const std::string secret = random_secret();
  StoreServer server;
};

std::string request(StoreOp op, std::uint32_t key_bytes, std::uint32_t value_bytes,
                    const std::string& text) {
  const StoreRequest header{op, key_bytes, value_bytes};
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + text;
}

TEST(Store, SetsGetsCountsAndWaits) {
  const Job job(2);
  const auto a = connect_store(job.client(0));
  const auto b = connect_store(job.client(1));
  auto waiting = std::async(std::launch::async, [&] { return b->get("later", kHang); });
  const std::string bytes("\0\n\xff value", 9);
  a->set("key", bytes);
  EXPECT_EQ(a->get("key", kHang), bytes);
  EXPECT_EQ(a->count("n"), 1);
  EXPECT_EQ(a->count("n"), 2);
  EXPECT_EQ(a->count("m"), 1);
  a->set("empty", "");
  EXPECT_EQ(a->get("empty", kHang), "");
  const std::string large(kLongestValue, 'x');
  a->set("later", large);
  EXPECT_EQ(waiting.get(), large);
  EXPECT_EQ(b->count("n"), 3);
}

TEST(Store, NamesAMissingKeyAndStaysUsable) {
  const Job job(1);
  const auto store = connect_store(job.client(0));
  const std::string text = message_of<Error>([&] { store->get("peers/7", 20ms); });
  EXPECT_TRUE(contains(text, "\"peers/7\"")) << text;
  store->set("peers/7", "x");
  EXPECT_EQ(store->get("peers/7", kHang), "x");
}

TEST(Store, PassesReportsOnAndFailsStaleKeys) {
  const std::string secret = random_secret();
  std::vector<MemberReport> reports;
  StoreServerOptions options{"127.0.0.1", 0, secret, "run", 2};
  options.on_report = [&](const std::string& key, const std::string& value) {
    reports.push_back(parse_report(key, value));
  };
  StoreServer server(options);
  const StoreClientOptions client{{"127.0.0.1"}, server.port(), secret, "run", 0, 2, kHang};
  const auto a = connect_store(client), b = connect_store(client);
  const MemberReport sent{MemberReport::Kind::lost, 1, 7, 0, "rank 0 died"};
  a->set(report_key(sent), to_text(sent));
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(to_text(reports[0]), "2 7 0 rank 0 died");
  EXPECT_EQ(reports[0].process, 1);

  const std::string old = generation_prefix("run", 1);
  a->set(old + "x", "1");
  auto waiting = std::async(
      std::launch::async, [&] { return message_of<PeerError>([&] { b->get(old + "y", kHang); }); });
  const Generation next{2, 1, true, false, {1}};
  server.set(kGenerationKey, to_text(next), old);
  EXPECT_TRUE(contains(waiting.get(), "members of the job have changed"));
  EXPECT_TRUE(contains(message_of<PeerError>([&] { a->get(old + "x", kHang); }), "changed"));
  const Generation got = parse_generation(b->get(kGenerationKey, kHang));
  EXPECT_EQ(to_text(got), to_text(next));
  EXPECT_EQ(got.rank_of(1), 0);
  EXPECT_EQ(got.rank_of(0), -1);
  EXPECT_TRUE(contains(message_of<DataError>([] { parse_generation("1 2"); }), "four numbers"));
}

TEST(Store, ReportsAFailedRankToWaitingClients) {
  Job job(3);
  const auto a = connect_store(job.client(0)), b = connect_store(job.client(2));
  a->set("peers/0", "x");
  auto waiting = std::async(std::launch::async, [&] {
    try {
      b->get("peers/1", kHang);
      return std::pair(0, std::string("it came"));
    } catch (const PeerError& error) {
      return std::pair(error.rank(), std::string(error.what()));
    }
  });
  job.server.report_failure(1, "rank 1 (pid 7) was killed by SIGKILL");
  job.server.report_failure(0, "rank 0 saw it");  // ignored: only the first failure is kept
  const auto [rank, text] = waiting.get();
  EXPECT_EQ(rank, 1) << text;
  EXPECT_TRUE(contains(text, "rank 2 waited for the others to join: rank 1 (pid 7) was killed by "))
      << text;
  // Later requests fail too, on existing and on new connections.
  const auto late = connect_store(job.client(2));
  for (Store* store : {a.get(), late.get()}) {
    const std::string message = message_of<PeerError>([&] { store->set("peers/2", "y"); });
    EXPECT_TRUE(contains(message, "rank 1 (pid 7) was killed by SIGKILL")) << message;
  }
  EXPECT_TRUE(contains(message_of<PeerError>([&] { late->get("peers/0", kHang); }), "SIGKILL"));
}

TEST(Store, RejectsClientsWithAnotherSecretRunOrSize) {
  const Job job(2);
  std::vector<StoreClientOptions> others(3, job.client(1));
  others[0].secret = random_secret();
  others[1].run = "another run";
  others[2].size = 3;
  for (const auto& options : others) {
    const std::string text = message_of<UsageError>([&] { connect_store(options); });
    EXPECT_TRUE(contains(text, "refuses rank 1")) << text;
  }
  EXPECT_EQ(connect_store(job.client(1))->count("n"), 1);
}

TEST(Store, ClientDetectsAServerWithoutTheSecret) {
  const Job job(2);
  std::uint16_t port = 0;
  const Fd listener = listen_tcp("127.0.0.1", port);
  StoreClientOptions options = job.client(1);
  options.port = port;
  auto client = std::async(std::launch::async, [&] { return connect_store(options); });
  const Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const Challenge challenge = make_challenge();
  send_all(socket, &challenge, sizeof(challenge));
  Reply reply{};
  EXPECT_TRUE(receive_all(socket, &reply, sizeof(reply), hang()));
  const Verdict accepted{1, reply.proof};
  send_all(socket, &accepted, sizeof(accepted));
  const std::string text = message_of<UsageError>([&] { client.get(); });
  EXPECT_TRUE(contains(text, "does not have the secret")) << text;
}

TEST(Store, IgnoresUnauthenticatedRequests) {
  const Job job(1);
  const auto store = connect_store(job.client(0));
  store->set("known", "value");
  for (const std::string& text :
       {request(StoreOp::set, 3, 5, "keyvalue"), request(StoreOp::get, 5, 0, "known"),
        std::string(100'000, '\1'), std::string(1, '\0')}) {
    const Fd stranger = job.call();
    send_all(stranger, text.data(), text.size());
    shutdown(stranger.get(), SHUT_WR);
    std::string heard;
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(stranger.get(), buffer, sizeof(buffer), 0)) > 0;) {
      heard.append(buffer, static_cast<std::size_t>(got));
    }
    EXPECT_LE(heard.size(), sizeof(Challenge) + sizeof(Verdict));
    EXPECT_FALSE(contains(heard, "value"));
  }
  message_of<Error>([&] { store->get("key", 1ms); });
  EXPECT_EQ(store->get("known", kHang), "value");
}

TEST(Store, RejectsOversizedRequestsBeforeReadingThem) {
  const Job job(1);
  const std::vector<std::string> requests = {request(StoreOp::set, 1, 0xffffffffu, ""),
                                             request(StoreOp::set, kLongestKey + 1, 1, ""),
                                             request(StoreOp::set, 1, kLongestValue + 1, ""),
                                             request(StoreOp::get, 1, 1, ""),
                                             request(StoreOp::get, 0, 0, ""),
                                             request(static_cast<StoreOp>(9), 1, 0, "")};
  for (const std::string& text : requests) {
    const Fd socket = job.member();
    EXPECT_TRUE(send_all(socket, text.data(), text.size()));
    StoreAnswer answer{StoreVerdict::good, 0};
    EXPECT_TRUE(receive_all(socket, &answer, sizeof(answer), hang()));
    EXPECT_EQ(answer.verdict, StoreVerdict::refused);
    EXPECT_TRUE(wait_until([&] { return is_closed(socket); }));
  }
  const auto store = connect_store(job.client(0));
  message_of<UsageError>([&] { store->set("k", std::string(kLongestValue + 1, 'x')); });
  message_of<UsageError>([&] { store->set(std::string(kLongestKey + 1, 'k'), "x"); });
  store->set(std::string(kLongestKey, 'k'), std::string(kLongestValue, 'x'));
  EXPECT_EQ(store->get(std::string(kLongestKey, 'k'), kHang).size(), kLongestValue);
}

TEST(Store, RejectsWritesAboveItsLimit) {
  const Job job(1, 300'000);
  const auto store = connect_store(job.client(0));
  const std::string value(60'000, 'x');
  int kept = 0;
  const std::string text = message_of<Error>([&] {
    for (; kept < 100; ++kept) store->set("key " + std::to_string(kept), value);
  });
  EXPECT_TRUE(contains(text, "full")) << text;
  EXPECT_EQ(kept, 4);
  for (int i = 0; i < 100; ++i) store->set("key 0", value);  // replaces the old value
  message_of<Error>([&] {
    for (int i = 0; i < 10'000; ++i) store->count("count " + std::to_string(i));
  });
  EXPECT_EQ(store->get("key 3", kHang), value);
}

TEST(Store, ListensAtOneAddressAndReleasesThePort) {
  Job job(2);
  const auto a = connect_store(job.client(0));
  EXPECT_TRUE(contains(message_of<Error>([&] {
                         connect_tcp({"127.0.0.2"}, static_cast<std::uint16_t>(job.server.port()),
                                     1s);
                       }),
                       "no connection"));
  job.server.stop_listening();
  a->set("still", "served");
  EXPECT_EQ(a->get("still", kHang), "served");
  const StoreServer next({"127.0.0.1", job.server.port(), job.secret, "run", 2});
  EXPECT_EQ(connect_store(job.client(1))->count("fresh"), 1);
}

// Ranks write and read in turn while strangers open ten thousand connections and send garbage.
TEST(Store, WorksDuringAFloodOfStrangers) {
  constexpr int kRanks = 3, kStrangers = 10'000, kOpen = 200;
  const Job job(kRanks);
  std::atomic<bool> over{false};
  std::vector<std::future<std::int64_t>> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(std::async(std::launch::async, [&, r] {
      const auto store = connect_store(job.client(r));
      std::int64_t sum = 0;
      for (int step = 0; step < 50 || !over.load(); ++step) {
        const std::string key = std::to_string(step % 50) + "/";
        store->set(key + std::to_string(r), std::to_string(step % 50 * 10 + r));
        std::int64_t all = 0;
        for (int o = 0; o < kRanks; ++o) {
          all += std::stoll(store->get(key + std::to_string(o), kHang));
        }
        if (step < 50) sum += all;
        if (all != step % 50 * 10 * kRanks + 3) throw Error("another sum");
      }
      return sum;
    }));
  }
  std::vector<Fd> open(kOpen);
  for (int i = 0; i < kStrangers; ++i) {
    Fd stranger = job.call();
    if (i % 2 == 0) {
      const std::string garbage(static_cast<std::size_t>(1 + i % 300), static_cast<char>(i));
      send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    const linger reset{1, 0};  // so that no port stays in TIME_WAIT
    setsockopt(stranger.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    open[static_cast<std::size_t>(i % kOpen)] = std::move(stranger);
  }
  over.store(true);
  for (auto& rank : ranks) EXPECT_EQ(rank.get(), 50 * 49 / 2 * 10 * kRanks + 3 * 50);
}

TEST(SealedStore, RejectsForgedValues) {
  auto open = std::make_shared<MemoryStore>();
  const std::string secret = random_secret();
  const auto store = make_sealed_store(open, secret);
  store->set("key", "value");
  EXPECT_EQ(store->get("key", kHang), "value");
  store->set("empty", "");
  EXPECT_EQ(store->get("empty", kHang), "");
  open->set("moved", open->get("key", kHang));
  open->set("short", "x");
  open->set("none", "");
  std::string changed = open->get("key", kHang);
  changed.back() ^= 1;
  open->set("changed", changed);
  make_sealed_store(open, random_secret())->set("forged", "value");
  for (const char* key : {"moved", "short", "none", "changed", "forged"}) {
    const std::string text = message_of<DataError>([&] { store->get(key, kHang); });
    EXPECT_TRUE(contains(text, key)) << text;
  }
}

}  // namespace
}  // namespace tessera::comm
