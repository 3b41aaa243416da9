#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Description of a call that a rank sends to its peers, which compare it with their own. Every
// backend with peers (shm, two-level, nccl, tcp) exchanges these bytes, through memory or
// messages, and may append its own data.
struct Record {
  Op op{};
  DType dtype{};
  ReduceOp reduce{};
  std::uint8_t form = 0;  // shared, with parts, in place, with unequal counts
  std::int32_t peer = 0;
  std::uint64_t count = 0;       // compared unless the counts are unequal
  std::uint64_t label_hash = 0;  // of the whole label
  std::uint64_t parts_hash = 0;  // of the sizes of the parts; 0 if there are none
  char label[48] = {};           // truncated
};
static_assert(sizeof(Record) == 80, "no padding: records are sent between processes");

Record make_record(const Collective& call);
std::string describe(const Record& record);
// Returns whether the call is an all_to_all whose counts may differ from rank to rank.
bool has_unequal_counts(const Record& record) noexcept;
bool same_call(const Record& a, const Record& b);

// Throws a UsageError that prints every rank's call, unless all are the same.
void compare_calls(int ranks, const std::function<const Record&(int rank)>& record,
                   std::uint64_t sequence, const std::string& group);

// Returns the error message if a send and its receive do not match, otherwise "".
std::string compare_message(const Record& send, int sender, const Record& recv, int receiver,
                            const std::string& group);

}  // namespace tessera::comm
