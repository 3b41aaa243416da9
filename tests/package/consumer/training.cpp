#include <torch/torch.h>

#include <iostream>

#include "tessera/tessera.h"

// Without a launcher this is a job of one rank, for which an all-reduce is the identity.
int main() try {
  const tessera::comm::Group world = tessera::comm::init();
  const torch::Tensor x = torch::full({5}, world.rank() + 1, torch::kFloat);
  world.all_reduce(x).wait();
  std::cout << "rank " << world.rank() << " of " << world.size() << ": " << x.sum().item<float>()
            << "\n";
  return world.size() == 1 && x.sum().item<float>() == 5 ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
