#pragma once

#include <cstddef>

namespace tessera::comm::mpi {

inline constexpr std::size_t kSmallBytes = 16 << 10;  // travels with the record of the call

// [Note: tags] MPI tells messages apart by sender and tag. A group takes kTagsPerGroup tags that no
// other group of any two of its members uses: its members agree, at its creation, on a number that
// none of them has used (the largest of their proposals). Each then claims it; where another group,
// made at the same time by another thread, was quicker on one of them, all propose again. The upper
// half of the tags is for these agreements, one tag per name of a group.
inline constexpr int kStringTag = 0;
inline constexpr int kShutdownTag = 1;
inline constexpr int kFirstGroupTag = 16;
inline constexpr int kTagsPerGroup = 8;
// What a message of a group is: its tag is this, counted from the group's first.
enum class Tag : int { header = 0, data = 1, result = 2, message_header = 3, message = 4 };

}  // namespace tessera::comm::mpi
