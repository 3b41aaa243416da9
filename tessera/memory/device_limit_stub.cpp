// Where CUDA's headers were not found when this was built.
#include "tessera/core/errors.h"
#include "tessera/memory/device_limit.h"

namespace tessera::memory {

DeviceLimit::DeviceLimit(c10::Device device, std::int64_t bytes) : device_(device), set_(false) {
  if (device.is_cpu() || bytes == 0) return;
  throw UsageError(
      "--memory-limit: this build cannot limit the memory of a GPU: CUDA's headers "
      "(cuda_runtime_api.h, which come with nvcc) or a LibTorch with CUDA were not there when it "
      "was configured; wanted no --memory-limit, or --device cpu");
}
DeviceLimit::~DeviceLimit() = default;

}  // namespace tessera::memory
