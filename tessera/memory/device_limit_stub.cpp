// Used if the headers of CUDA were not found when this was built.
#include "tessera/core/errors.h"
#include "tessera/memory/device_memory.h"

namespace tessera::memory {

DeviceLimit::DeviceLimit(c10::Device device, std::int64_t bytes) : device_(device), set_(false) {
  if (device.is_cpu() || bytes == 0) return;
  throw UsageError(
      Flag("memory-limit"),
      "this build cannot limit the memory of a GPU, because the headers of CUDA "
      "(cuda_runtime_api.h, part of nvcc) or a LibTorch with CUDA were not found when it was "
      "configured. Omit --memory-limit, or use --device cpu");
}
DeviceLimit::~DeviceLimit() = default;

}  // namespace tessera::memory
