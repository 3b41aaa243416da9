#pragma once

#include <cstdint>

namespace tessera::checkpoint {

// Made-up files: an error or something sound, never a crash. They print how many were accepted.
void fuzz_headers(int count, std::uint64_t seed);
// Manifests with a right checksum, so that what follows it is reached; some are loaded by.
void fuzz_manifests(int count, std::uint64_t seed);

}  // namespace tessera::checkpoint
