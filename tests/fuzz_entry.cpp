// Entry point for libFuzzer: one program per TESSERA_FUZZ_TARGET, see tessera_fuzzer.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include TESSERA_FUZZ_HEADER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  TESSERA_FUZZ_TARGET(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
