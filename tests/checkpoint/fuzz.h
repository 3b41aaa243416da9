#pragma once

#include <cstdint>

namespace tessera::checkpoint {

// Fuzz tests: forged files cause an error or valid results, never a crash. Print the number
// accepted.
void fuzz_headers(int count, std::uint64_t seed);
// Manifests with a correct checksum, so that the rest is parsed. Also loads accepted ones.
void fuzz_manifests(int count, std::uint64_t seed);

}  // namespace tessera::checkpoint
