// tessera doctor: shows versions and hardware, and which backends work.

#include <optional>
#include <string>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/doctor_report.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/core/log.h"
#include "tessera/kernels/cuda/cuda.h"
#include "tessera/process/nvml.h"
#include "tessera/version.h"

namespace tessera::cli {
namespace {

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

DoctorReport examine() {
  DoctorReport report;
  report.tessera_version = TESSERA_VERSION;
  report.compiler = compiler_version();
  report.torch = torch_info();
  report.mpi = unless_empty(comm::mpi::version());
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
  facts.mpi_problem = comm::mpi::why_not();
  facts.mpi_version = comm::mpi::version();
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
