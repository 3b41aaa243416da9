#pragma once

#include <string_view>

// What must hold for any input to the readers of token folders and of what prepare reads: an answer
// that is sound, or DataError. Each aborts the program otherwise. The mutating test of this folder
// calls them, and libFuzzer where the compiler has it.
namespace tessera::data {

void fuzz_tokens(std::string_view input);   // tokens.json without its first line, the checksum
void fuzz_prepare(std::string_view input);  // prepare.json likewise
void fuzz_bin(std::string_view input);      // a .bin
void fuzz_jsonl(std::string_view input);    // a line of JSON, against another parser
void fuzz_lines(std::string_view input);    // JSON lines of every format, cut into parts
void fuzz_text(std::string_view input);     // a text, cut into parts: the first byte says how
void fuzz_packed(std::string_view input);   // gzip or zstd

}  // namespace tessera::data
