#pragma once

#include <string>

namespace tessera::cli {

// What the LibTorch that is loaded says about itself.
struct TorchInfo {
  std::string version;
  std::string library;  // path of the library
  bool cuda_build = false;
  std::string cuda_version;  // that it was built for; "" without CUDA
  int gpus = 0;              // that it can use
};

TorchInfo torch_info();

}  // namespace tessera::cli
