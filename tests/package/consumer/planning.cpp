#include <iostream>

#include "tessera/core/units.h"
#include "tessera/version.h"

int main() {
  const auto bytes = tessera::parse_bytes("25MiB");
  std::cout << "tessera " << TESSERA_VERSION << ": " << tessera::format_bytes(bytes) << "\n";
  return bytes == 25 * 1024 * 1024 ? 0 : 1;
}
