#include "tessera/cli/torch_info.h"

#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "tessera/core/text.h"

namespace tessera::cli {

TorchInfo torch_info() {
  TorchInfo info;
  info.version = TORCH_VERSION;
  Dl_info where{};
  // The address of any function of the library identifies its file.
  if (::dladdr(reinterpret_cast<void*>(&at::get_cpu_capability), &where) != 0 &&
      where.dli_fname != nullptr) {
    info.library = where.dli_fname;
  }
  const at::CUDAHooksInterface& cuda = at::detail::getCUDAHooks();
  info.cuda_build = cuda.hasCUDART();
  if (info.cuda_build) {
    const long version = cuda.versionCUDART();  // 13020 is 13.2
    info.cuda_version = str(version / 1000, ".", version % 1000 / 10);
    info.gpus = cuda.getNumGPUs();
  }
  return info;
}

}  // namespace tessera::cli
