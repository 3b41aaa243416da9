// Every rank holds five times its rank + 1; after the all-reduce every rank holds the sum.
//   tessera run -n 3 -- build/bin/all_reduce
#include <torch/torch.h>

#include <iostream>

#include "tessera/tessera.h"

int main() try {
  const tessera::Group world = tessera::init();
  const torch::Tensor x = torch::full({5}, world.rank() + 1, torch::kFloat);
  const auto show = [&](const char* when) {
    std::ostringstream line;
    line << "rank " << world.rank() << " " << when << ":";
    for (int i = 0; i < 5; ++i) line << " " << x[i].item<float>();
    std::cout << line.str() << std::endl;
  };
  show("before");
  world.all_reduce(x).wait();
  show("after ");
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
