#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tessera/comm/collective.h"

namespace tessera::comm::mpi {

// What a rank says of its next call. The peers compare it with their own.
struct Header {
  Op op{};
  DType dtype{};
  ReduceOp reduce{};
  std::uint8_t unused = 0;
  std::int32_t peer = 0;
  std::uint64_t count = 0;
  char label[56] = {};
};
static_assert(sizeof(Header) == 72, "no padding: headers travel between processes");

inline Header make_header(const Collective& call) {
  Header header{call.op, call.dtype, call.reduce, 0, call.peer, call.count, {}};
  call.label.copy(header.label, sizeof(header.label) - 1);
  return header;
}

inline Collective to_collective(const Header& header) {
  Collective call;
  call.op = header.op;
  call.dtype = header.dtype;
  call.reduce = header.reduce;
  call.peer = header.peer;
  call.count = header.count;
  call.label = header.label;
  return call;
}

inline bool same_call(const Header& a, const Header& b) {
  return a.op == b.op && a.dtype == b.dtype && a.count == b.count && a.peer == b.peer &&
         (!is_reduction(a.op) || a.reduce == b.reduce) && std::strcmp(a.label, b.label) == 0;
}

inline constexpr std::size_t kSmallBytes = 16 << 10;  // travels with the header

// [Note: tags] MPI tells messages apart by sender and tag. A group takes kTagsPerGroup tags that no
// other group of any two of its members uses: its members agree, at its creation, on a number that
// none of them has used (the largest of their proposals). The upper half of the tags is for these
// agreements, one tag per name of a group, so that groups may be created at the same time.
inline constexpr int kStringTag = 0;
inline constexpr int kGoodbyeTag = 1;
inline constexpr int kFirstGroupTag = 16;
inline constexpr int kTagsPerGroup = 8;
enum class Channel : int { header = 0, data = 1, result = 2, message_header = 3, message = 4 };

}  // namespace tessera::comm::mpi
