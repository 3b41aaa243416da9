// The way in for libFuzzer. The first byte chooses the parser.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/planner/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: tessera::planner::fuzz_line(input); break;
    case 1: tessera::planner::fuzz_runs(input); break;
    default: tessera::planner::fuzz_hardware(input); break;
  }
  return 0;
}
