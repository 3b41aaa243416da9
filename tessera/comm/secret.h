#pragma once

#include <chrono>
#include <string>

#include "tessera/comm/join_notice.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// A job's secret is a string of bytes that only its ranks, and the launcher, know. With it they
// prove to each other that they belong together; it never travels itself, except to a child through
// an inherited descriptor, to a process of the same user through a Unix socket, or through MPI.

inline constexpr std::size_t kSecretBytes = 32;
inline constexpr std::size_t kShortestSecret = 16;
inline constexpr std::size_t kLongestSecret = 4096;

// Returns kSecretBytes unpredictable bytes.
std::string random_secret();

// A file in memory that holds the secret and can no longer be changed, to be inherited by ranks.
// Never one of the standard descriptors.
Fd secret_descriptor(const std::string& secret);

// What such a descriptor holds; it can be read again and again. From now on programs that this
// process executes do not inherit it. Throws UsageError when it is not open or holds no secret.
std::string read_secret_descriptor(int fd);

// A secret that the user keeps in a file. Throws UsageError unless it is a regular file of this
// user that nobody else may read.
std::string read_secret_file(const std::string& path);

// The shell command that makes such a file, for messages.
std::string how_to_make_secret_file(const std::string& path);

// For ranks of one host that were given no secret: rank 0 makes one and hands it to processes of
// the same user, whom the kernel vouches for, through a Unix socket of this name. Collective over
// the ranks. Throws PeerError naming a rank that does not come in time, and UsageError if two
// processes have the same rank or another size. Reports missing ranks after `notice`.
std::string agree_on_secret(const std::string& name, int rank, int size,
                            std::chrono::milliseconds timeout,
                            std::chrono::milliseconds notice = JoinNotice::kFirst);

// Whether the other end of a Unix socket is a process of this user.
bool same_user(const Fd& socket);

}  // namespace tessera::comm
