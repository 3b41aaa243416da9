#pragma once

// The fixed words of a manifest, shared by its writer and its reader.

#include <cstddef>
#include <string_view>

namespace tessera::checkpoint {

inline constexpr std::string_view kFormat = "tessera-checkpoint";
// Written. Version 1 stored one cut of a parameter, that of tensor parallelism; it is still read.
inline constexpr int kVersion = 2;
inline constexpr std::string_view kChecksumBefore = "{\"crc32c\": \"";
inline constexpr std::string_view kChecksumAfter = "\",\n";
inline constexpr std::size_t kChecksumDigits = 8;

}  // namespace tessera::checkpoint
