#pragma once

#include <string>

namespace tessera::cli {

// Description of the loaded LibTorch.
struct TorchInfo {
  std::string version;
  std::string library;  // path of the library
  bool cuda_build = false;
  std::string cuda_version;  // of the build; "" without CUDA
  int gpus = 0;              // GPUs that it can use
};

TorchInfo torch_info();

}  // namespace tessera::cli
