#pragma once

// Runs one collective on one group and compares it bitwise with the expected result.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/backend.h"
#include "tests/comm/oracle.h"

namespace tessera::comm::testing {

inline const std::vector<DType> kTypes = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                          DType::i32, DType::i64, DType::u8};
inline const std::vector<ReduceOp> kReductions = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min,
                                                  ReduceOp::max};
inline const std::vector<Op> kOps = {Op::all_reduce, Op::reduce_scatter, Op::all_gather,
                                     Op::broadcast,  Op::reduce,         Op::all_to_all};

inline Collective all_reduce(std::vector<float>& x, std::string label = "") {
  return {Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(), x.data(),
          x.size(),       -1,         label};
}

using Oracle = std::function<Bytes(const Collective& call, const std::vector<Bytes>& inputs,
                                   int rank, const Bytes& before)>;

struct Case {
  Op op = Op::all_reduce;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  std::size_t count = 0;
  int root = 0;
  bool in_place = false;
};

// Symmetric memory for the buffers of a case; null: ordinary memory.
inline Bytes run_case(Backend& group, const Case& c, const Oracle& oracle = expected,
                      std::byte* base = nullptr) {
  const int n = group.size(), rank = group.rank();
  const std::size_t size = size_of(c.dtype);
  std::vector<Bytes> inputs;
  for (int r = 0; r < n; ++r) {
    inputs.push_back(make_input(c.dtype, in_count(c.op, c.count, n, r), r));
  }
  const Bytes& mine = inputs[static_cast<std::size_t>(rank)];
  const std::size_t out_bytes = out_count(c.op, c.count, n, rank) * size;
  Bytes before(out_bytes, std::byte{0x5a});

  // One buffer holds input and output, at an offset that is not a multiple of 64.
  const std::size_t most = (c.count + static_cast<std::size_t>(n)) * size + 64;
  Bytes own;
  if (base == nullptr) {
    own.resize(2 * most + 16);
    base = own.data();
  }
  std::byte* in = base + 16;
  std::byte* out = base + 16 + most;
  const std::size_t begin = shard_of(c.count, n, rank).begin * size;
  if (c.in_place) {
    out = c.op == Op::reduce_scatter ? in + begin : in;
    if (c.op == Op::all_gather) in += begin;
  }
  if (!before.empty()) std::memcpy(out, before.data(), out_bytes);
  if (!mine.empty()) std::memcpy(in, mine.data(), mine.size());
  if (c.in_place && c.op == Op::reduce) before = mine;

  Collective call{c.op, c.dtype, c.reduce, Traffic::model, in, out, c.count, c.root, "case"};
  group.submit(call).wait();
  const Bytes want = oracle(call, inputs, rank, before);
  EXPECT_EQ(want.size(), out_bytes);
  EXPECT_TRUE(want.empty() || std::memcmp(out, want.data(), out_bytes) == 0)
      << describe(call) << " over " << group.kind() << ", rank " << rank << " of " << n
      << (c.in_place ? ", in place" : "");
  return Bytes(out, out + out_bytes);
}

// Runs every operation, type and reduction at the given sizes.
inline void run_small_matrix(Backend& group, const std::vector<std::size_t>& counts,
                             const Oracle& oracle = expected) {
  const auto n = static_cast<std::size_t>(group.size());
  for (const Op op : kOps) {
    for (const DType dtype : kTypes) {
      for (const std::size_t count : counts) {
        for (const ReduceOp reduce : kReductions) {
          if (!is_reduction(op) && reduce != ReduceOp::sum) continue;
          run_case(group, {op, dtype, reduce, count, static_cast<int>(count % n), false}, oracle);
        }
      }
    }
  }
}

// Returns counts that are equal on every rank that passes the same seed. A quarter of them are 0.
inline CountTable random_counts(int ranks, std::size_t most, unsigned seed) {
  std::mt19937 random(seed);
  CountTable table(static_cast<std::size_t>(ranks),
                   std::vector<std::size_t>(static_cast<std::size_t>(ranks)));
  for (auto& row : table) {
    for (std::size_t& count : row) count = random() % 4 == 0 ? 0 : random() % (most + 1);
  }
  return table;
}

// Returns the counts of one rank.
inline ExchangeCounts counts_of(const CountTable& table, int rank) {
  const auto own = static_cast<std::size_t>(rank);
  ExchangeCounts counts{table[own], {}};
  for (const auto& row : table) counts.out.push_back(row[own]);
  return counts;
}

// Returns an all_to_all with unequal counts.
inline Collective exchange(DType dtype, const void* in, void* out, ExchangeCounts counts,
                           std::string label = "exchange") {
  Collective call;
  call.op = Op::all_to_all;
  call.dtype = dtype;
  call.in = in;
  call.out = out;
  call.count = part_begin(counts.in, static_cast<int>(counts.in.size()));
  call.label = std::move(label);
  call.counts = std::make_shared<const ExchangeCounts>(std::move(counts));
  return call;
}

// One all_to_all with unequal counts: the same on all ranks.
struct ExchangeCase {
  ExchangeCase(DType type, CountTable counts) : dtype(type), table(std::move(counts)) {
    const int ranks = static_cast<int>(table.size());
    for (int r = 0; r < ranks; ++r) {
      inputs.push_back(make_input(dtype, part_begin(table[static_cast<std::size_t>(r)], ranks), r));
    }
  }
  DType dtype;
  CountTable table;
  std::vector<Bytes> inputs;  // by rank
};

// `base`: symmetric memory for the input; null: ordinary memory.
inline void run_exchange(Backend& group, const ExchangeCase& c, std::byte* base = nullptr) {
  const int rank = group.rank();
  const auto self = static_cast<std::size_t>(rank);
  Bytes in = c.inputs[self];
  if (base != nullptr && !in.empty()) std::memcpy(base, in.data(), in.size());
  const Bytes want = expected_exchange(c.table, c.inputs, self, size_of(c.dtype));
  constexpr std::size_t kAround = 64;  // bytes that must not change
  Bytes out(kAround + want.size() + kAround, std::byte{0x5a});
  Bytes whole(out);
  std::copy(want.begin(), want.end(), whole.begin() + kAround);
  const Collective call = exchange(c.dtype, base != nullptr ? base : in.data(),
                                   out.data() + kAround, counts_of(c.table, rank));
  group.submit(call).wait();
  EXPECT_TRUE(out == whole) << describe(call) << " over " << group.kind() << ", rank " << rank
                            << " of " << group.size();
}
inline void run_exchange(Backend& group, DType dtype, const CountTable& table,
                         std::byte* base = nullptr) {
  run_exchange(group, ExchangeCase(dtype, table), base);
}

inline bool has_in_place(Op op) { return op != Op::all_to_all; }

// Checks the traffic that a new group counts for one call of each kind: a ring sends (n - 1) shards
// of a buffer.
inline void expect_ring_traffic(Backend& group) {
  const auto n = static_cast<std::uint64_t>(group.size());
  std::vector<float> in(1000), out(1000 * n);
  const auto run = [&](Op op, Traffic traffic) {
    group.submit({op, DType::f32, ReduceOp::sum, traffic, in.data(), out.data(), 1000, 0, ""})
        .wait();
  };
  run(Op::all_reduce, Traffic::model);
  run(Op::reduce_scatter, Traffic::model);
  run(Op::all_gather, Traffic::control);
  const std::uint64_t shards = (n - 1) * ((1000 + n - 1) / n) * 4;
  EXPECT_EQ(group.traffic().sent_bytes, 3 * shards);
  EXPECT_EQ(group.traffic().control_bytes, shards);
}

}  // namespace tessera::comm::testing
