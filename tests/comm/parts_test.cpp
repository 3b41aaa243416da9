// Collectives of several concatenated buffers: equal to one collective per buffer, in one call.

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/group.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

using Sizes = std::vector<std::size_t>;

at::Tensor buffer(const Group& group, std::int64_t count, bool symmetric) {
  return symmetric ? group.symmetric({count}, at::kFloat).local() : at::zeros({count});
}

at::Tensor values(std::int64_t count, int rank) {
  return at::arange(count, at::kFloat).remainder(13) + 100 * rank;
}

// Returns the shards of `rank`, part by part, as ranges of the whole buffer.
std::vector<Shard> shards(const Sizes& parts, int ranks, int rank) {
  std::vector<Shard> result;
  std::size_t begin = 0;
  for (const std::size_t part : parts) {
    const Shard own = shard_of(part, ranks, rank);
    result.push_back({begin + own.begin, own.size});
    begin += part;
  }
  return result;
}

void check_parts(const Group& group, const Sizes& sizes, bool symmetric) {
  std::int64_t count = 0, own = 0;
  for (const std::size_t size : sizes) count += static_cast<std::int64_t>(size);
  const std::vector<Shard> mine = shards(sizes, group.size(), group.rank());
  for (const Shard& shard : mine) own += static_cast<std::int64_t>(shard.size);
  Call call;
  call.parts = std::make_shared<Sizes>(sizes);
  at::Tensor sum = at::zeros({count});
  for (int r = 0; r < group.size(); ++r) sum += values(count, r);

  const at::Tensor in = buffer(group, count, symmetric);
  // Symmetric memory has the same size on all ranks; rank 0 has the largest shards.
  const at::Tensor out = buffer(group, count, symmetric).narrow(0, 0, own);
  in.copy_(values(count, group.rank()));
  const std::uint64_t sent = group.traffic().sent_bytes;
  group.reduce_scatter(out, in, call).wait();
  std::uint64_t expected = 0;
  for (const std::size_t size : sizes) {
    expected += static_cast<std::uint64_t>(group.size() - 1) * shard_stride(size, group.size()) * 4;
  }
  EXPECT_EQ(group.traffic().sent_bytes - sent, expected);
  std::int64_t at = 0;
  for (const Shard& shard : mine) {
    const auto size = static_cast<std::int64_t>(shard.size);
    EXPECT_TRUE(at::equal(out.narrow(0, at, size),
                          sum.narrow(0, static_cast<std::int64_t>(shard.begin), size)));
    at += size;
  }
  const at::Tensor all = buffer(group, count, symmetric);
  group.all_gather(all, out, call).wait();
  EXPECT_TRUE(at::equal(all, sum));

  // In place: each shard stays at its position.
  in.copy_(values(count, group.rank()));
  group.reduce_scatter(in, in, call).wait();
  for (const Shard& shard : mine) {
    const auto begin = static_cast<std::int64_t>(shard.begin);
    const auto size = static_cast<std::int64_t>(shard.size);
    EXPECT_TRUE(at::equal(in.narrow(0, begin, size), sum.narrow(0, begin, size)));
  }
  group.all_gather(in, in, call).wait();
  EXPECT_TRUE(at::equal(in, sum));
}

TEST(Parts, AreReducedAndGatheredSeparately) {
  const std::vector<Sizes> cases = {{8},          {1, 2, 3},       {5, 0, 7, 64},    {0},
                                    {16, 48, 32}, {4096, 8000, 3}, {40000, 1, 20000}};
  for (const int ranks : {1, 2, 3, 4}) {
    run_threads(ranks, [&](std::shared_ptr<Backend> backend) {
      const Group group(std::move(backend));
      for (const Sizes& sizes : cases) {
        for (const bool symmetric : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << ranks << " ranks, parts " << ::testing::PrintToString(sizes)
                       << (symmetric ? ", symmetric" : ", ordinary"));
          check_parts(group, sizes, symmetric);
        }
      }
    });
  }
}

// Ranks that get copies of one shard get the same bits as a sum over all ranks.
TEST(Parts, CopiesOfAShardMatchTheSumOverAllRanks) {
  for (const auto& [ranks, copies] : {std::pair(2, 2), {4, 2}, {6, 2}, {6, 3}}) {
    run_threads(ranks, [&](std::shared_ptr<Backend> backend) {
      const Group group(std::move(backend));
      const int shards_of_all = ranks / copies;
      for (const Sizes& sizes :
           {Sizes{8}, Sizes{1, 2, 3}, Sizes{5, 0, 7, 64}, Sizes{40000, 1, 20000}}) {
        for (const bool symmetric : {false, true}) {
          for (const bool in_parts : {false, true}) {
            std::int64_t count = 0, own = 0;
            for (const std::size_t size : sizes) count += static_cast<std::int64_t>(size);
            const Sizes cut = in_parts ? sizes : Sizes{static_cast<std::size_t>(count)};
            const auto mine = shards(cut, shards_of_all, group.rank() % shards_of_all);
            for (const Shard& shard : mine) own += static_cast<std::int64_t>(shard.size);
            Call call;
            if (in_parts) call.parts = std::make_shared<Sizes>(cut);
            const at::Tensor in = buffer(group, count, symmetric);
            const at::Tensor whole = buffer(group, count, symmetric);
            in.copy_(values(count, group.rank()) * 0.1f / static_cast<float>(1 + group.rank()));
            group.all_reduce(whole, in).wait();
            const std::uint64_t sent = group.traffic().sent_bytes;
            call.copies = copies;
            const at::Tensor out = at::empty({own});
            group.reduce_scatter(out, in, call).wait();
            EXPECT_EQ(group.traffic().sent_bytes, sent);  // counted by the caller in other groups
            std::int64_t at = 0;
            for (const Shard& shard : mine) {
              const auto size = static_cast<std::int64_t>(shard.size);
              EXPECT_TRUE(at::equal(out.narrow(0, at, size),
                                    whole.narrow(0, static_cast<std::int64_t>(shard.begin), size)))
                  << ranks << " ranks, " << copies << " copies, " << count << " elements";
              at += size;
            }
          }
        }
      }
      Call call;
      call.copies = ranks + 1;  // does not divide the ranks
      const at::Tensor in = at::zeros({8});
      EXPECT_THROW(group.reduce_scatter(in, in, call), UsageError);
    });
  }
}

TEST(Parts, SharedAllGatherIsOnlyABarrier) {
  run_threads(3, [](std::shared_ptr<Backend> backend) {
    const Group group(std::move(backend));
    const auto memory = group.symmetric({4}, at::kFloat).memory();
    const at::Tensor all = at::from_blob(memory->part(0), {12}, at::kFloat);
    Call call;
    call.shared = true;
    call.parts = std::make_shared<Sizes>(Sizes{9, 3});
    for (int step = 0; step < 50; ++step) {
      for (const Shard& shard : shards({9, 3}, 3, group.rank())) {
        all.narrow(0, static_cast<std::int64_t>(shard.begin), static_cast<std::int64_t>(shard.size))
            .fill_(step);
      }
      group.all_gather(all, all, call).wait();
      EXPECT_EQ(all.sum().item<float>(), 12 * step);
      group.barrier();
    }
    EXPECT_EQ(group.traffic().sent_bytes, 50u * 2 * (3 + 1) * 4);
  });
}

TEST(Parts, MustHaveTheSizeOfTheBuffer) {
  const Group group(dry::make_backend(0, 2, "dry"));
  Call call;
  call.parts = std::make_shared<Sizes>(Sizes{4, 4});
  EXPECT_THROW(group.all_gather(at::zeros({9}), at::zeros({4}), call), UsageError);
  EXPECT_THROW(group.reduce_scatter(at::zeros({3}), at::zeros({8}), call), UsageError);
  EXPECT_NO_THROW(group.reduce_scatter(at::zeros({4}), at::zeros({8}), call).wait());
}

TEST(Parts, ReportsInPlaceAgainstNotInPlace) {
  EXPECT_THROW(run_threads(2,
                           [](std::shared_ptr<Backend> backend) {
                             const Group group(std::move(backend));
                             const at::Tensor all = at::zeros({8});
                             Call call;
                             call.parts = std::make_shared<Sizes>(Sizes{4, 4});
                             const bool in_place = group.rank() == 0;
                             group.all_gather(all, in_place ? all : at::zeros({4}), call).wait();
                           }),
               UsageError);
}

}  // namespace
}  // namespace tessera::comm
