#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// Returns the names of the shared libraries of a program that the loader does not find; empty if it
// finds all or cannot be run. Does not run the program.
std::vector<std::string> missing_libraries(const std::string& program);

// Returns a one-line message: which libraries are missing and how to get them. `torch_folder` is
// where an installed tessera-torch looks for LibTorch.
std::string missing_libraries_text(const std::vector<std::string>& missing,
                                   const std::string& torch_folder);

}  // namespace tessera::cli
