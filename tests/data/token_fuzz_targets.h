#pragma once

#include <string_view>

// Fuzz targets for the readers of token folders and of prepare's input. Any input must give a valid
// result or DataError; otherwise the program aborts. Called by the mutating tests of this folder
// and by libFuzzer if the compiler has it.
namespace tessera::data {

void fuzz_tokens(std::string_view input);   // tokens.json without its first line, the checksum
void fuzz_prepare(std::string_view input);  // prepare.json without its checksum
void fuzz_bin(std::string_view input);      // a .bin
void fuzz_jsonl(std::string_view input);    // a line of JSON, compared with another parser
void fuzz_lines(std::string_view input);    // JSON lines of every format, cut into parts
void fuzz_text(std::string_view input);     // a text, cut into parts; the first byte selects how
void fuzz_packed(std::string_view input);   // gzip or zstd

}  // namespace tessera::data
