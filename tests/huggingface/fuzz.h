#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::huggingface {

// Fuzz targets, also for libFuzzer. Any input must throw DataError or give a valid result that
// round-trips; otherwise the program aborts.
void fuzz_config(std::string_view input);
void fuzz_index(std::string_view input);
void fuzz_shape(std::string_view input);

// Runs all targets on `count` texts, made from valid ones by changing bytes, numbers and words.
void fuzz_texts(int count, std::uint64_t seed);

}  // namespace tessera::huggingface
