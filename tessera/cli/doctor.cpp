// tessera doctor: what is here, and which backends work.

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/doctor_report.h"
#include "tessera/core/log.h"
#include "tessera/version.h"

namespace tessera::cli {
namespace {

DoctorReport examine(bool mpi_built) {
  DoctorReport report;
  report.tessera_version = TESSERA_VERSION;
  report.compiler = compiler_version();
  report.torch = torch_info();
  report.mpi = mpi_library_version();
  report.cpu = cpu_info();
  report.topology = topology();
  report.cpu_quota = cpu_quota();
  report.memory = memory_info();
  report.limits = limits();
  report.gpus = driver_gpus();

  BackendFacts facts;
  facts.shm_problem = shared_memory_problem();
  facts.mpi_built = mpi_built;
  facts.mpi_library = report.mpi.value_or("");
  facts.torch = report.torch;
  facts.nccl_library = nccl_library_version().value_or("");
  facts.driver_gpus = report.gpus ? static_cast<int>(report.gpus->size()) : 0;
  report.backends = backend_statuses(facts);
  return report;
}

}  // namespace

int doctor_command(int argc, char** argv) {
  CommandLine line("doctor",
                   "Shows versions, hardware, limits, and which backends work here and why not.\n"
                   "The status is 0 when the shm backend works.",
                   "  tessera doctor\n"
                   "  tessera doctor --json | jq '.backends[] | select(.works | not)'");
  bool json = false;
  line.app().add_flag("--json", json, "print JSON");
  if (!line.parse(argc, argv)) return 0;
  const DoctorReport report = examine(TESSERA_HAVE_MPI != 0);
  write_all(1, json ? to_json(report) : to_text(report));
  return report.healthy() ? 0 : 1;
}

}  // namespace tessera::cli
