#include "tessera/comm/capture.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

namespace tessera::comm {
namespace {

template <typename Function>
Function find_in_runtime(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

bool capturing(const c10::Stream& stream) {
  if (stream.device_type() != c10::kCUDA) return false;
  static const auto ask = find_in_runtime<int (*)(void*, int*)>("cudaStreamIsCapturing");
  int status = 0;
  return ask != nullptr && ask(stream.native_handle(), &status) == 0 && status != 0;
}

bool capturing_on(c10::Device device) {
  if (device.type() != c10::kCUDA) return false;
  return capturing(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void ignore_captures_of_other_threads() {
  static const auto exchange =
      find_in_runtime<int (*)(int*)>("cudaThreadExchangeStreamCaptureMode");
  int relaxed = 2;
  if (exchange != nullptr) exchange(&relaxed);
}

}  // namespace tessera::comm
