#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// What a rank tells its peers of a call, so that they can compare it with their own. Every backend
// that has peers (shm, mpi, two-level, nccl) exchanges these bytes, through memory or messages,
// and may add what it alone needs behind them.
struct Record {
  Op op{};
  DType dtype{};
  ReduceOp reduce{};
  std::uint8_t form = 0;  // shared, with parts, in place
  std::int32_t peer = 0;
  std::uint64_t count = 0;
  std::uint64_t label_hash = 0;  // of the whole label; below is what fits
  std::uint64_t parts_hash = 0;  // of how the call is cut into parts; 0 if it is not
  char label[48] = {};
};
static_assert(sizeof(Record) == 80, "no padding: records travel between processes");

Record make_record(const Collective& call);
std::string describe(const Record& record);
bool same_call(const Record& a, const Record& b);

// Throws a UsageError that prints what every rank called, unless all called the same.
void compare_calls(int ranks, const std::function<const Record&(int rank)>& record,
                   std::uint64_t sequence, const std::string& group);

// The text of the error if the two sides of a message differ, else "".
std::string compare_message(const Record& send, int sender, const Record& recv, int receiver,
                            const std::string& group);

}  // namespace tessera::comm
