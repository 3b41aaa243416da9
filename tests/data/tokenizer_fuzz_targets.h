#pragma once

#include <string_view>

// What must hold for any input: an answer that is sound, or DataError. Each aborts the program
// otherwise. The mutating test of this folder calls them, and libFuzzer where the compiler has it.
namespace tessera::data {

void fuzz_tokenizer(std::string_view input);  // a tokenizer.json
void fuzz_encode(std::string_view input);     // a text

}  // namespace tessera::data
