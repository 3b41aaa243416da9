// A rank that has done its part may leave at any time, also between two checks by a rank that waits
// for it. That is not a failure.

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tessera/comm/local_peers.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/tcp/backend.h"
#include "tests/comm/oracle.h"
#include "tests/comm/watched_peers.h"

namespace tessera::comm {
namespace {

using testing::Bytes;
using testing::make_input;
using testing::WatchedPeers;

// Two ranks. Rank 1 acts and leaves exactly when rank 0, which has seen nothing yet, checks whether
// rank 1 is alive.
struct Pair {
  explicit Pair(const std::string& kind) {
    const auto make = kind == "shm" ? &shm::make_backend : &tcp::make_backend;
    std::vector<std::shared_ptr<Peers>> peers = make_local_peers(2);
    watched = std::make_shared<WatchedPeers>(std::move(peers[0]));
    stays = make(watched, {0, 1}, "pair", {});
    leaves = make(std::move(peers[1]), {0, 1}, "pair", {});
  }
  void then_leaves(std::function<void()> act) {
    watched->before_state = [this, act = std::move(act)] {
      act();
      leaves.reset();
    };
  }

  std::shared_ptr<WatchedPeers> watched;
  std::shared_ptr<Backend> stays, leaves;
};

Collective message_call(Op op, std::byte* data, std::size_t bytes, int peer) {
  const bool sends = op == Op::send;
  return {op,
          DType::u8,
          ReduceOp::sum,
          Traffic::model,
          sends ? data : nullptr,
          sends ? nullptr : data,
          bytes,
          peer,
          ""};
}

class Leaving : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, Leaving, ::testing::Values("shm", "tcp"));

TEST_P(Leaving, AfterAnUnreceivedSendIsNotAFailure) {
  for (const std::size_t bytes : {0u, 1u, 100'000u}) {
    Pair pair(GetParam());
    Bytes sent = make_input(DType::u8, bytes, 1), got(bytes);
    pair.then_leaves(
        [&] { pair.leaves->submit(message_call(Op::send, sent.data(), bytes, 0)).wait(); });
    const Work work = pair.stays->submit(message_call(Op::recv, got.data(), bytes, 1));
    EXPECT_NO_THROW(work.wait());
    EXPECT_EQ(pair.leaves, nullptr);
    EXPECT_EQ(got, sent);
  }
}

TEST_P(Leaving, AfterItsPartOfACollectiveIsNotAFailure) {
  Pair pair(GetParam());
  Collective meet;
  pair.then_leaves([&] { (void)pair.leaves->submit(meet); });
  // Rank 1 posts its part after rank 0, and leaves when it has seen rank 0's.
  const Work work = pair.stays->submit(meet);
  EXPECT_NO_THROW(work.wait());
  EXPECT_EQ(pair.leaves, nullptr);
}

TEST(LeavingShm, AfterReadingADirectMessageIsNotAFailure) {
  Pair pair("shm");
  constexpr std::size_t kBytes = 1'000'000;  // too large for packets, so it is read directly
  std::shared_ptr<SymmetricMemory> of_reader;
  std::thread reader([&] { of_reader = pair.leaves->symmetric(kBytes); });
  const std::shared_ptr<SymmetricMemory> memory = pair.stays->symmetric(kBytes);
  reader.join();
  Bytes sent = make_input(DType::u8, kBytes, 0), got(kBytes);
  auto* const from = static_cast<std::byte*>(memory->part(0));
  std::memcpy(from, sent.data(), kBytes);
  pair.then_leaves([&] {
    pair.leaves->submit(message_call(Op::recv, got.data(), kBytes, 0)).wait();
    of_reader.reset();
  });
  const Work work = pair.stays->submit(message_call(Op::send, from, kBytes, 1));
  EXPECT_NO_THROW(work.wait());
  EXPECT_EQ(pair.leaves, nullptr);
  EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace tessera::comm
