// tessera doctor: shows versions and hardware, and which backends work.

#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <optional>
#include <string>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/doctor_report.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/cuda.h"
#include "tessera/process/nvml.h"
#include "tessera/version.h"

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

namespace {

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

DoctorReport examine() {
  DoctorReport report;
  report.tessera_version = TESSERA_VERSION;
  report.compiler = compiler_version();
  report.torch = torch_info();
  report.nccl = unless_empty(comm::nccl::version());
  report.cublaslt = unless_empty(cublaslt_version());
  report.driver = unless_empty(process::driver_version());
  report.cuda_kernels = kernels::cuda::built();
  report.cpu = cpu_info();
  report.topology = process::topology();
  report.cpu_quota = process::cpu_quota();
  report.memory = memory_info();
  report.limits = limits();
  report.gpus = driver_gpus();

  BackendFacts facts;
  facts.shm_problem = shared_memory_problem();
  facts.nccl_problem = comm::nccl::why_not();
  facts.nccl_version = comm::nccl::version();
  facts.usable_gpus = report.torch.gpus;
  facts.driver_gpus = report.gpus ? static_cast<int>(report.gpus->size()) : 0;
  report.backends = backend_statuses(facts);
  return report;
}

}  // namespace

int doctor_command(int argc, char** argv) {
  CommandLine line("doctor",
                   "Shows versions, hardware, limits, and which backends work here, with reasons.\n"
                   "The exit status is 0 if the shm backend works.",
                   "  tessera doctor\n"
                   "  tessera doctor --json | jq '.backends[] | select(.works | not)'");
  bool json = false;
  line.app().add_flag("--json", json, "print JSON");
  if (!line.parse(argc, argv)) return 0;
  const DoctorReport report = examine();
  print_out(json ? to_json(report) : to_text(report));
  return report.healthy() ? 0 : 1;
}

}  // namespace tessera::cli
