#pragma once

// Expected results of every collective, computed from the inputs of all ranks by simple loops.

#include <cstddef>
#include <cstring>
#include <vector>

#include "tessera/comm/collective.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm::testing {

using Bytes = std::vector<std::byte>;

// Returns values that differ by rank and position, whose sum depends on the order of additions.
inline Bytes make_input(DType dtype, std::size_t count, int rank, unsigned salt = 0) {
  Bytes bytes(count * size_of(dtype));
  std::uint64_t state = 0x9e3779b97f4a7c15ull * (static_cast<unsigned>(rank) + 1) + salt * 7919;
  std::vector<float> floats(1);
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto bits = static_cast<std::uint32_t>(state >> 33);
    const float value = (static_cast<float>(bits % 20001) - 10000.0f) / 977.0f *
                        static_cast<float>(1u << (bits % 7));
    std::byte* at = bytes.data() + i * size_of(dtype);
    switch (dtype) {
      case DType::f32: std::memcpy(at, &value, 4); break;
      case DType::f64: {
        const double wide = static_cast<double>(value) * 1.0000001;
        std::memcpy(at, &wide, 8);
        break;
      }
      case DType::bf16:
      case DType::f16: {
        const void* from[] = {&value};
        void* to[] = {at};
        reduce_reference({DType::f32, dtype, ReduceOp::sum, 1}, from, to, 1);
        break;
      }
      default:
        for (std::size_t b = 0; b < size_of(dtype); ++b) {
          at[b] = static_cast<std::byte>((state >> (8 * (b % 8))) & 0xff);
        }
    }
  }
  return bytes;
}

inline std::size_t in_count(Op op, std::size_t count, int ranks, int rank) {
  if (op == Op::all_gather) return shard_of(count, ranks, rank).size;
  return op == Op::barrier ? 0 : count;
}
inline std::size_t out_count(Op op, std::size_t count, int ranks, int rank) {
  const std::size_t own = shard_of(count, ranks, rank).size;
  if (op == Op::reduce_scatter) return own;
  if (op == Op::all_to_all) return own * static_cast<std::size_t>(ranks);
  return op == Op::barrier ? 0 : count;
}

// Returns the output of `rank`. `before` is the previous content of its output buffer, which is
// kept where nothing is written.
inline Bytes expected(const Collective& call, const std::vector<Bytes>& inputs, int rank,
                      const Bytes& before) {
  const int ranks = static_cast<int>(inputs.size());
  const std::size_t size = size_of(call.dtype);
  const Shard own = shard_of(call.count, ranks, rank);
  Bytes all;
  if (is_reduction(call.op)) {
    std::vector<const void*> sources;
    for (const Bytes& input : inputs) sources.push_back(input.data());
    all.resize(call.bytes());
    void* to[] = {all.data()};
    const bool average = call.reduce == ReduceOp::avg;
    reduce_reference({call.dtype, call.dtype, call.reduce, average ? ranks : 1}, sources, to,
                     call.count);
  }
  const auto cut = [&](const Bytes& from, std::size_t begin, std::size_t count) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin * size);
    return Bytes(first, first + static_cast<std::ptrdiff_t>(count * size));
  };
  Bytes out;
  switch (call.op) {
    case Op::all_reduce: return all;
    case Op::reduce: return rank == call.peer ? all : before;
    case Op::reduce_scatter: return cut(all, own.begin, own.size);
    case Op::broadcast: return inputs[static_cast<std::size_t>(call.peer)];
    case Op::all_gather:
      for (const Bytes& input : inputs) out.insert(out.end(), input.begin(), input.end());
      return out;
    case Op::all_to_all:
      for (const Bytes& input : inputs) {
        const Bytes part = cut(input, own.begin, own.size);
        out.insert(out.end(), part.begin(), part.end());
      }
      return out;
    default: return before;
  }
}

// Number of elements that rank `from` sends to rank `to`: table[from][to].
using CountTable = std::vector<std::vector<std::size_t>>;

// Returns the output of `rank` of an all_to_all with unequal counts.
inline Bytes expected_exchange(const CountTable& table, const std::vector<Bytes>& inputs,
                               std::size_t rank, std::size_t element) {
  Bytes out;
  for (std::size_t from = 0; from < table.size(); ++from) {
    std::size_t begin = 0;
    for (std::size_t to = 0; to < rank; ++to) begin += table[from][to] * element;
    const auto first = inputs[from].begin() + static_cast<std::ptrdiff_t>(begin);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(table[from][rank] * element));
  }
  return out;
}

}  // namespace tessera::comm::testing
