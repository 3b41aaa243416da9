#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::huggingface {

// What must hold for any text: DataError, or something sound, and the way back. For libFuzzer; each
// aborts the program otherwise.
void fuzz_config(std::string_view input);
void fuzz_index(std::string_view input);
void fuzz_shape(std::string_view input);

// So many texts, made of good ones by changing bytes, numbers and words.
void fuzz_texts(int count, std::uint64_t seed);

}  // namespace tessera::huggingface
