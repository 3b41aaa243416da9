#include <iostream>

#include "tessera/planning.h"

int main() {
  const auto bytes = tessera::parse_bytes("25MiB");
  std::cout << "tessera " << TESSERA_VERSION << ": " << tessera::format_bytes(bytes) << "\n";
  return bytes == 25 * 1024 * 1024 ? 0 : 1;
}
