#pragma once

#include <cstdlib>
#include <iostream>
#include <string_view>

namespace tessera {

// For fuzz targets: aborts with the input if a condition does not hold.
inline void must(bool holds, const char* what, std::string_view input) {
  if (holds) return;
  std::cerr << "fuzz: " << what << " for " << input << std::endl;
  std::abort();
}

}  // namespace tessera
