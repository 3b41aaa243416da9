#pragma once

// Constants of the manifest format, shared by its writer and its reader.

#include <cstddef>
#include <string_view>

namespace tessera::checkpoint {

inline constexpr std::string_view kFormat = "tessera-checkpoint";
// Version that is written. Version 1, with only tensor-parallel cuts, can still be read.
inline constexpr int kVersion = 2;
inline constexpr std::string_view kChecksumBefore = "{\"crc32c\": \"";
inline constexpr std::string_view kChecksumAfter = "\",\n";
inline constexpr std::size_t kChecksumDigits = 8;

}  // namespace tessera::checkpoint
