#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "tessera/core/fd.h"

namespace tessera {

// Returns the kind of a file in words: "a regular file", "a folder", "a pipe", …
std::string kind_of_file(mode_t mode);
// Returns the kind of the file at `path`, following links, or "nothing" if stat() fails.
std::string kind_of_file(const std::string& path);

// Opens a regular file for reading. Never blocks, unlike a plain open() of a pipe. Throws
// UsageError if the file does not exist, cannot be read or is not a regular file. `wanted`, such as
// "a text file", completes "must be …" at the end of the message. `flag`, if any, starts it.
Fd open_regular(const std::string& path, const std::string& wanted = "a regular file",
                const std::string& flag = "");

// Returns the text of a regular file. Throws what open_regular() throws, and DataError for a file
// of more than `limit` bytes, without reading it all.
std::string read_small_file(const std::string& path, std::int64_t limit,
                            const std::string& wanted = "a regular file",
                            const std::string& flag = "");

}  // namespace tessera
