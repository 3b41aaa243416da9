#include "tessera/process/nvml.h"

#include "tessera/core/shared_library.h"

namespace tessera::process {
namespace {

constexpr auto kRereadAfter = std::chrono::milliseconds(500);
constexpr int kSmClock = 1, kGpuSensor = 0;  // NVML_CLOCK_SM, NVML_TEMPERATURE_GPU

// Returns the PCI bus id of a CUDA device, which identifies it to NVML: NVML numbers all GPUs of
// the machine, CUDA only the visible ones and in its own order.
std::string pci_bus_id(int cuda_device) {
  const SharedLibrary library({"libcuda.so.1"});
  int (*init)(unsigned) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*bus)(char*, int, int) = nullptr;
  library.find("cuInit", init);
  library.find("cuDeviceGet", get);
  library.find("cuDeviceGetPCIBusId", bus);
  int device = 0;
  char text[64] = "";
  if (init == nullptr || get == nullptr || bus == nullptr || init(0) != 0 ||
      get(&device, cuda_device) != 0 || bus(text, sizeof text, device) != 0) {
    return "";
  }
  return text;
}

}  // namespace

const NvmlApi* nvml() {
  static const NvmlApi* const started = []() -> const NvmlApi* {
    const SharedLibrary library({"libnvidia-ml.so.1"});
    static NvmlApi api;
    library.find("nvmlInit_v2", api.init);
    library.find("nvmlSystemGetDriverVersion", api.driver_version);
    library.find("nvmlDeviceGetHandleByPciBusId_v2", api.device_by_bus);
    library.find("nvmlDeviceGetUtilizationRates", api.utilization);
    library.find("nvmlDeviceGetMemoryInfo", api.memory);
    library.find("nvmlDeviceGetClockInfo", api.clock);
    library.find("nvmlDeviceGetPowerUsage", api.power);
    library.find("nvmlDeviceGetTemperature", api.temperature);
    return api.init != nullptr && api.init() == 0 ? &api : nullptr;
  }();
  return started;
}

std::string driver_version() {
  char text[96] = "";
  const NvmlApi* const api = nvml();
  if (api == nullptr || api->driver_version == nullptr) return "";
  return api->driver_version(text, sizeof text) == 0 ? text : "";
}

GpuMonitor::GpuMonitor(int cuda_device) {
  if (cuda_device < 0) return;
  const NvmlApi* const api = nvml();
  if (api == nullptr || api->device_by_bus == nullptr) return;
  const std::string bus = pci_bus_id(cuda_device);
  if (!bus.empty() && api->device_by_bus(bus.c_str(), &device_) == 0) api_ = api;
}

std::optional<GpuReading> GpuMonitor::read(Clock::time_point now) {
  if (api_ == nullptr) return std::nullopt;
  if (read_at_ && now - *read_at_ < kRereadAfter) return last_;
  read_at_ = now;
  last_ = {};
  NvmlApi::Utilization utilization;
  NvmlApi::Memory memory;
  unsigned number = 0;
  if (api_->utilization != nullptr && api_->utilization(device_, &utilization) == 0) {
    last_.utilization = static_cast<int>(utilization.gpu);
  }
  if (api_->memory != nullptr && api_->memory(device_, &memory) == 0) {
    last_.memory_used = static_cast<std::int64_t>(memory.used);
  }
  if (api_->clock != nullptr && api_->clock(device_, kSmClock, &number) == 0) {
    last_.sm_mhz = static_cast<int>(number);
  }
  if (api_->power != nullptr && api_->power(device_, &number) == 0) {
    last_.power_w = static_cast<double>(number) * 1e-3;
  }
  if (api_->temperature != nullptr && api_->temperature(device_, kGpuSensor, &number) == 0) {
    last_.temperature_c = static_cast<int>(number);
  }
  return last_;
}

}  // namespace tessera::process
