#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "tessera/core/fd.h"

namespace tessera {

// What a file is, in words: "a regular file", "a folder", "a pipe", "a character device" …
std::string kind_of_file(mode_t mode);
// The same of what lies at `path`, links followed; "nothing" where there is nothing to be found.
std::string kind_of_file(const std::string& path);

// Opens a regular file for reading. Never waits, as an ordinary open() of a pipe waits for a
// writer. Throws UsageError for whatever is not there, may not be read or is no regular file;
// `wanted` ends the message, such as "a text file", and `flag`, if there is one, begins it.
Fd open_regular(const std::string& path, const std::string& wanted = "a regular file",
                const std::string& flag = "");

// The text of a regular file. Throws what open_regular() does, and DataError for one of more than
// `limit` bytes, of which no more than that is ever read.
std::string read_small_file(const std::string& path, std::int64_t limit,
                            const std::string& wanted = "a regular file",
                            const std::string& flag = "");

}  // namespace tessera
