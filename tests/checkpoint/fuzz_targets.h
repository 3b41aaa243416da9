#pragma once

#include <string_view>

// libFuzzer targets for the parsers of checkpoints: any input throws DataError or is accepted and
// consistent. Otherwise they abort the program. The mutating tests are in fuzz.h.
namespace tessera::checkpoint {

// A safetensors file. If the first byte is below 128, the rest is a header, followed by that many
// bytes of data. Otherwise the rest is the whole file.
void fuzz_header(std::string_view input);
// A manifest without its first line, which has the checksum.
void fuzz_manifest(std::string_view input);
// A list of hashes in the format of sha256sum.
void fuzz_hashes(std::string_view input);

}  // namespace tessera::checkpoint
