// Proofs, and the reception that asks for them.

#include "tessera/comm/handshake.h"

#include <gtest/gtest.h>

#include "tessera/comm/reception.h"
#include "tests/comm/strangers.h"

namespace tessera::comm {
namespace {

using namespace testing;

Invitation invitation(const std::string& secret) {
  return {Invitation::Purpose::peer, secret, "run 1", 4, 0};
}

TEST(Handshake, BothSidesAreConvincedByTheSameSecret) {
  const Invitation ours = invitation(random_secret());
  const Challenge challenge = make_challenge();
  const Reply reply = make_reply(ours, 3, challenge);
  const Verdict verdict = judge(ours, challenge, reply);
  EXPECT_EQ(verdict.welcome, 1u);
  EXPECT_TRUE(is_genuine(ours, challenge, reply, verdict));
}

TEST(Handshake, EverythingThatIsNotTheSameIsRefused) {
  const Invitation ours = invitation(random_secret());
  std::vector<Invitation> others(5, ours);
  others[0].secret[0] ^= 1;
  others[1].run = "run 2";
  others[2].size = 5;
  others[3].acceptor = 1;
  others[4].purpose = Invitation::Purpose::store;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const Challenge challenge = make_challenge();
    const Reply reply = make_reply(others[i], 3, challenge);
    EXPECT_EQ(judge(ours, challenge, reply).welcome, 0u) << i;
    // And an acceptor that has something else convinces no caller.
    const Verdict verdict = judge(others[i], challenge, reply);
    ASSERT_EQ(verdict.welcome, 1u);
    EXPECT_FALSE(is_genuine(ours, challenge, make_reply(ours, 3, challenge), verdict)) << i;
  }
  const Challenge challenge = make_challenge();
  Reply reply = make_reply(ours, 3, challenge);
  reply.rank = 2;  // somebody else's seat
  EXPECT_EQ(judge(ours, challenge, reply).welcome, 0u);
  for (const int rank : {-1, 4}) {
    EXPECT_EQ(judge(ours, challenge, make_reply(ours, rank, challenge)).welcome, 0u) << rank;
  }
}

TEST(Handshake, WhatWasOverheardIsWorthNothing) {
  const Invitation ours = invitation(random_secret());
  const Challenge then = make_challenge();
  const Reply reply = make_reply(ours, 3, then);
  const Verdict verdict = judge(ours, then, reply);
  const Challenge now = make_challenge();
  EXPECT_EQ(judge(ours, now, reply).welcome, 0u);
  EXPECT_FALSE(is_genuine(ours, then, make_reply(ours, 3, then), verdict));
  // Nor is our own proof, held against ourselves.
  Reply mirrored = reply;
  mirrored.proof = verdict.proof;
  EXPECT_EQ(judge(ours, then, mirrored).welcome, 0u);
}

// A reception at a free port of the loopback.
class Door {
 public:
  explicit Door(const Invitation& invitation, Reception::Limits limits = {})
      : reception_(listeners(port_), invitation, limits) {}

  Fd call() const { return connect_tcp({"127.0.0.1"}, port_, kHang); }

  // Serves until somebody has come in, or `done`.
  std::vector<Guest> serve(const std::function<bool()>& done = [] { return false; }) {
    for (const auto end = hang(); std::chrono::steady_clock::now() < end && !done();) {
      std::vector<pollfd> polls;
      reception_.add_to(polls);
      poll(polls.data(), polls.size(), 5);
      auto guests = reception_.act_on(polls);
      if (!guests.empty()) return guests;
    }
    return {};
  }

  std::size_t callers() const { return reception_.callers(); }

 private:
  static std::vector<Fd> listeners(std::uint16_t& port) {
    std::vector<Fd> result;
    result.push_back(listen_tcp("127.0.0.1", port));
    return result;
  }
  std::uint16_t port_ = 0;
  Reception reception_;
};

std::future<Greeted> greet_from(const Door& door, const Invitation& invitation, int rank) {
  return std::async(std::launch::async, [&door, invitation, rank] {
    return greet(door.call(), invitation, rank, hang());
  });
}

TEST(Reception, SilentCallersDelayNobody) {
  const Invitation ours = invitation(random_secret());
  Door door(ours);
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(door.call());
  auto caller = greet_from(door, ours, 2);
  const auto guests = door.serve();
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].rank, 2);
  EXPECT_EQ(caller.get(), Greeted::yes);
  for (const Fd& socket : silent) EXPECT_FALSE(is_closed(socket)) << "nobody had to wait for it";
}

TEST(Reception, KeepsFewOfThoseWhoProveNothing) {
  const Invitation ours = invitation(random_secret());
  Door door(ours, {8, std::chrono::hours(1)});
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(door.call());
  EXPECT_TRUE(door.serve([&] { return is_closed(silent[87]); }).empty());
  EXPECT_TRUE(is_closed(silent[87])) << "the oldest have to go";
  EXPECT_EQ(door.callers(), 8u + 4u);
  auto caller = greet_from(door, ours, 1);
  EXPECT_EQ(door.serve().size(), 1u);
  EXPECT_EQ(caller.get(), Greeted::yes);
}

TEST(Reception, TheSilentGoWhenPatienceEnds) {
  Door door(invitation("secret"), {8, 1ms});
  const Fd silent = door.call();
  door.serve([&] { return is_closed(silent); });
  EXPECT_TRUE(is_closed(silent));
}

TEST(Reception, TellsWhoIsRefused) {
  Door door(invitation("one secret of 16 b"));
  auto caller = greet_from(door, invitation("another secret"), 1);
  const auto over = [&] { return caller.wait_for(0s) == std::future_status::ready; };
  EXPECT_TRUE(door.serve(over).empty());
  EXPECT_EQ(caller.get(), Greeted::refused);
}

TEST(Reception, AnAnswerMayComeByteByByte) {
  const Invitation ours = invitation(random_secret());
  Door door(ours);
  const Fd socket = door.call();
  auto bytes = std::async(std::launch::async, [&] {
    Challenge challenge{};
    if (!receive_all(socket, &challenge, sizeof(challenge), hang())) return false;
    const Reply reply = make_reply(ours, 3, challenge);
    for (std::size_t i = 0; i < sizeof(reply); ++i) {
      if (!send_all(socket, reinterpret_cast<const char*>(&reply) + i, 1)) return false;
    }
    return true;
  });
  const auto guests = door.serve();
  EXPECT_TRUE(bytes.get());
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].rank, 3);
}

}  // namespace
}  // namespace tessera::comm
