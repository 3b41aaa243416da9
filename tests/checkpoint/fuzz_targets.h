#pragma once

#include <string_view>

// What must hold for any input to the parsers of checkpoints: they throw DataError, or what they
// accept is sound. Each aborts the program otherwise. For libFuzzer; fuzz.h has the mutating tests.
namespace tessera::checkpoint {

// A safetensors file. The first byte says how: below 128, so many bytes of data follow a header,
// which is the rest; otherwise the rest is the file as it is.
void fuzz_header(std::string_view input);
// A manifest without its first line, which has the checksum.
void fuzz_manifest(std::string_view input);
// A list of hashes, as of sha256sum.
void fuzz_hashes(std::string_view input);

}  // namespace tessera::checkpoint
