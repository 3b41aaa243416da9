#include <torch/torch.h>

#include <iostream>

#include "tessera/core/units.h"

int main() {
  const auto tensor = torch::ones({5});
  std::cout << tessera::format_bytes(tensor.nbytes()) << "\n";
  return tensor.sum().item<float>() == 5 ? 0 : 1;
}
