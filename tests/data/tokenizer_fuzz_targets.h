#pragma once

#include <string_view>

// Fuzz targets. Any input must give a valid result or DataError; otherwise the program aborts.
// Called by the mutating tests of this folder and by libFuzzer if the compiler has it.
namespace tessera::data {

void fuzz_tokenizer(std::string_view input);  // a tokenizer.json
void fuzz_encode(std::string_view input);     // a text

}  // namespace tessera::data
