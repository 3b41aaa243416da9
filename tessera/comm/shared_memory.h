#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/comm/peers.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// Memory without a name, which one process makes and passes to others as a descriptor.
//
// [Note: reserved pages] A file in memory gets its pages when they are touched, and a page that
// cannot be had then is a SIGBUS or the kernel's out-of-memory killer. So memory that will be used
// whole is reserved before anybody uses it, where a lack of it is an error that names the rank. The
// one who makes it first compares its size with what the host and the control group have left: the
// kernel gives pages until it has none, and then kills. Every rank reserves its own part, so that
// pages lie near the processor that will use them, and all do so at the same time.

// Throws OutOfMemoryError if it is to be reserved and is more than there is.
Fd make_shared_memory(std::size_t bytes, Pages pages);

// Gives a part its pages.
void reserve(const Fd& memory, std::size_t offset, std::size_t bytes);

std::shared_ptr<Segment> map_shared_memory(const Fd& memory, std::size_t bytes);

// Bytes that this process could still touch, by what the kernel says of the host and of the control
// groups (version 2) that it is in; nothing is known as the largest number.
std::uint64_t available_memory();

}  // namespace tessera::comm
