#pragma once

#include <string_view>

// Invariants of the planner's parsers for any input: they return a sound answer or throw
// UsageError. Each function aborts the program otherwise. They are called by fuzz_test.cpp, and by
// libFuzzer if the compiler supports it.
namespace tessera::planner {

void fuzz_line(std::string_view input);      // a line of --questions
void fuzz_runs(std::string_view input);      // a file for --score
void fuzz_hardware(std::string_view input);  // a file for --hardware-file

}  // namespace tessera::planner
