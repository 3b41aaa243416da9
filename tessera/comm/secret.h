#pragma once

#include <chrono>
#include <string>

#include "tessera/comm/join_notice.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// A job's secret is a byte string known only to its ranks and the launcher, with which they
// authenticate each other. It is passed to a child through an inherited descriptor, to a process of
// the same user through a Unix socket; it is never sent in any other way.

inline constexpr std::size_t kSecretBytes = 32;
inline constexpr std::size_t kShortestSecret = 16;
inline constexpr std::size_t kLongestSecret = 4096;

// Returns kSecretBytes unpredictable bytes.
std::string random_secret();

// Returns a sealed in-memory file with the secret, for ranks to inherit. Its number is never that
// of a standard descriptor.
Fd secret_descriptor(const std::string& secret);

// Reads the secret from such a descriptor and sets close-on-exec; it can be read repeatedly. Throws
// UsageError if the descriptor is not open or contains no secret.
std::string read_secret_descriptor(int fd);

// Reads a secret from a file. Throws UsageError unless it is a regular file that this user owns and
// that no other user can access.
std::string read_secret_file(const std::string& path);

// Returns the shell command that creates such a file, for messages.
std::string how_to_make_secret_file(const std::string& path);

// Creates a secret for ranks of one host that were given none. Rank 0 sends it through a Unix
// socket of this name to processes of the same user, which the kernel verifies. Collective over the
// ranks. Throws PeerError with the missing ranks after the timeout, and UsageError if two processes
// have the same rank or different sizes. Reports missing ranks after `notice`.
std::string agree_on_secret(const std::string& name, int rank, int size,
                            std::chrono::milliseconds timeout,
                            std::chrono::milliseconds notice = JoinNotice::kFirst);

// Passes a text of rank 0, at most kLongestSecret bytes, to the other ranks of one host in the same
// way; they ignore their own `text`. Returns it.
std::string share_on_host(const std::string& name, int rank, int size, const std::string& text,
                          std::chrono::milliseconds timeout,
                          std::chrono::milliseconds notice = JoinNotice::kFirst);

// Returns whether the other end of a Unix socket is a process of this user.
bool same_user(const Fd& socket);

}  // namespace tessera::comm
