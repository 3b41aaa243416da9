#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// Shared libraries that the loader would not find for a program, by their names; empty where it
// finds all, or cannot be asked. Runs none of the program.
std::vector<std::string> missing_libraries(const std::string& program);

// What to say where some are missing, in one line: which, and how to get them. `torch_folder` is
// where an installed tessera-torch looks for LibTorch.
std::string missing_libraries_text(const std::vector<std::string>& missing,
                                   const std::string& torch_folder);

}  // namespace tessera::cli
