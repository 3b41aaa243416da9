#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/comm/peers.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// Anonymous memory that one process creates and passes to others as a descriptor.
//
// [Note: reserved pages] An in-memory file gets its pages when they are first touched; if a page
// cannot be allocated then, the result is a SIGBUS or the kernel's out-of-memory killer. So memory
// that will be used completely is reserved before use, where a shortage is an error that names the
// rank. The process that creates it first compares its size with the memory left on the host and in
// the cgroup, because the kernel allocates pages until none are left and then kills. Every rank
// reserves its own part, so that pages are placed near the processor that will use them, and all
// ranks do so concurrently.

// Creates shared memory. With Pages::reserved, throws OutOfMemoryError if less memory is available;
// pages are allocated by reserve().
Fd make_shared_memory(std::size_t bytes, Pages pages);

// Allocates the pages of a range.
void reserve(const Fd& memory, std::size_t offset, std::size_t bytes);

std::shared_ptr<Segment> map_shared_memory(const Fd& memory, std::size_t bytes);

// Returns the number of bytes that this process could still allocate, according to the host's
// memory and its cgroups (version 2). Returns the largest number if that is unknown.
std::uint64_t available_memory();

}  // namespace tessera::comm
