// Every rank holds five values rank + 1; after the all-reduce every rank holds their sums.
//   tessera run -n 3 -- build/bin/all_reduce                    # in host memory
//   tessera run -n 2 -- build/bin/all_reduce --device cuda      # in the memory of GPUs
#include <torch/torch.h>

#include <iostream>
#include <sstream>
#include <string>

#include "tessera/tessera.h"

int main(int argc, char** argv) try {
  const std::string name = argc == 3 && std::string(argv[1]) == "--device" ? argv[2] : "cpu";
  if (argc != 1 && (argc != 3 || (name != "cpu" && name != "cuda"))) {
    std::cerr << "usage: all_reduce [--device cpu|cuda]\n";
    return 2;
  }
  const tessera::Group world = tessera::init();
  torch::Device device = torch::kCPU;
  if (name == "cuda") {
    const int gpus = static_cast<int>(torch::cuda::device_count());
    if (gpus == 0) throw tessera::UsageError("--device cuda: this process sees no GPU");
    // Assigns ranks to the GPUs of the host in turn; if there are more ranks than GPUs, they share.
    device = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(world.rank() % gpus));
  }
  const torch::Tensor x =
      torch::full({5}, world.rank() + 1, torch::device(device).dtype(torch::kFloat));
  const auto show = [&](const char* when) {
    std::ostringstream line;
    line << "rank " << world.rank() << " " << when << ":";
    const torch::Tensor values = x.cpu();
    for (int i = 0; i < 5; ++i) line << " " << values[i].item<float>();
    std::cout << line.str() << std::endl;
  };
  show("before");
  world.all_reduce(x).wait();
  show("after ");
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
