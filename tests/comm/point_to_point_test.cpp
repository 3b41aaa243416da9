#include <gtest/gtest.h>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tests/comm/oracle.h"

namespace tessera::comm {
namespace {

using testing::Bytes;
using testing::make_input;

Collective send(const void* data, std::size_t count, int to, DType dtype = DType::u8,
                std::string label = "") {
  return {Op::send, dtype, ReduceOp::sum, Traffic::model, data, nullptr, count, to, label};
}
Collective receive(void* data, std::size_t count, int from, DType dtype = DType::u8,
                   std::string label = "") {
  return {Op::recv, dtype, ReduceOp::sum, Traffic::model, nullptr, data, count, from, label};
}

// Every rank sends to all others before it receives, which works only if sends are asynchronous.
TEST(PointToPoint, AllRanksMaySendBeforeTheyReceive) {
  for (const std::size_t bytes : {0u, 1u, 1000u, 131072u, 131073u, 3'000'000u}) {
    run_threads(4, [&](std::shared_ptr<Backend> group) {
      const int n = group->size(), rank = group->rank();
      const Bytes mine = make_input(DType::u8, bytes, rank);
      std::vector<Bytes> got(static_cast<std::size_t>(n), Bytes(bytes));
      std::vector<Work> works;
      for (int r = 0; r < n; ++r) {
        if (r != rank) works.push_back(group->submit(send(mine.data(), bytes, r)));
      }
      for (int r = 0; r < n; ++r) {
        if (r == rank) continue;
        works.push_back(group->submit(receive(got[static_cast<std::size_t>(r)].data(), bytes, r)));
      }
      for (const Work& work : works) work.wait();
      for (int r = 0; r < n; ++r) {
        if (r == rank) continue;
        EXPECT_EQ(got[static_cast<std::size_t>(r)], make_input(DType::u8, bytes, r));
      }
    });
  }
}

TEST(PointToPoint, KeepsTheOrderPerPairAndDirection) {
  run_threads(2, [](std::shared_ptr<Backend> group) {
    const int other = 1 - group->rank();
    std::vector<std::vector<std::int32_t>> out, in;
    std::vector<Work> works;
    for (int i = 0; i < 50; ++i) {
      const std::size_t count = i % 5 == 0 ? 100'000 : static_cast<std::size_t>(i);
      out.emplace_back(count, i);
      in.emplace_back(count, -1);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      works.push_back(group->submit(receive(in[i].data(), in[i].size(), other, DType::i32)));
      works.push_back(group->submit(send(out[i].data(), out[i].size(), other, DType::i32)));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    EXPECT_EQ(in, out);
  });
}

TEST(PointToPoint, CopiesSymmetricMessagesOnce) {
  run_threads(2, [](std::shared_ptr<Backend> group) {
    const std::size_t bytes = 9'000'001;
    auto memory = group->symmetric(2 * bytes);
    auto* base = static_cast<std::byte*>(memory->part(group->rank()));
    const Bytes mine = make_input(DType::u8, bytes, group->rank());
    std::memcpy(base, mine.data(), bytes);
    const int other = 1 - group->rank();
    const auto start = group->traffic().copied_bytes;
    Work a = group->submit(send(base, bytes, other));
    Work b = group->submit(receive(base + bytes, bytes, other));
    a.wait();
    b.wait();
    EXPECT_EQ(Bytes(base + bytes, base + 2 * bytes), make_input(DType::u8, bytes, other));
    EXPECT_EQ(group->traffic().copied_bytes - start, bytes);  // one copy, not two
  });
}

TEST(PointToPoint, CollectivesRunWhileAReceiveWaits) {
  run_threads(2, [](std::shared_ptr<Backend> group) {
    std::vector<float> x(40'000, 1.0f), message(10, static_cast<float>(group->rank()));
    Work late;
    if (group->rank() == 0) late = group->submit(receive(message.data(), 10, 1, DType::f32));
    for (int i = 0; i < 3; ++i) {
      group
          ->submit({Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(), x.data(),
                    x.size(), -1, ""})
          .wait();
    }
    if (group->rank() == 1) late = group->submit(send(message.data(), 10, 0, DType::f32));
    late.wait();
    EXPECT_EQ(x[0], 8.0f);
    EXPECT_EQ(message[9], 1.0f);
  });
}

TEST(PointToPoint, MismatchIsAnErrorOnBothSides) {
  std::string texts[2];
  run_threads(2, [&](std::shared_ptr<Backend> group) {
    std::vector<std::byte> data(4096);
    try {
      if (group->rank() == 0) {
        group->submit(send(data.data(), 10, 1, DType::f32, "a")).wait();
        // The send itself was buffered; the next wait reports the error.
        for (;;) group->submit(receive(data.data(), 1, 1)).wait();
      } else {
        group->submit(receive(data.data(), 12, 0, DType::f32, "a")).wait();
      }
    } catch (const UsageError& error) {
      texts[group->rank()] = error.what();
    }
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("send(10 × f32"), std::string::npos) << text;
    EXPECT_NE(text.find("recv(12 × f32"), std::string::npos) << text;
  }
}

TEST(PointToPoint, RejectsInvalidPeers) {
  run_threads(2, [](std::shared_ptr<Backend> group) {
    std::byte data{};
    EXPECT_THROW(group->submit(send(&data, 1, group->rank())), UsageError);
    EXPECT_THROW(group->submit(send(&data, 1, 2)), UsageError);
    EXPECT_THROW(group->submit(receive(&data, 1, -1)), UsageError);
  });
}

}  // namespace
}  // namespace tessera::comm
