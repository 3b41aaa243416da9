#pragma once

#include <string_view>

// What must hold for any input to the planner's parsers: they answer or throw UsageError, and what
// they answer is sound. Each aborts the program otherwise. The mutating test of this folder calls
// them, and libFuzzer where the compiler has it.
namespace tessera::planner {

void fuzz_line(std::string_view input);      // a line of --questions
void fuzz_runs(std::string_view input);      // a file for --score
void fuzz_hardware(std::string_view input);  // a file for --hardware-file

}  // namespace tessera::planner
