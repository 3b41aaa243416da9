// Which launcher started this process, and which rank it is. The only place in comm/ that reads
// the environment.

#include <cstdlib>
#include <optional>

#include "tessera/comm/bootstrap.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> number(const char* name) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text->c_str(), &end, 10);
  if (*end != '\0' || value < 0 || value > 1'000'000'000) {
    throw UsageError(
        str("the variable ", name, " is ", quote(*text), "; wanted a number that is not negative"));
  }
  return static_cast<int>(value);
}

int need(const char* name, const char* because) {
  const auto value = number(name);
  if (!value) {
    throw UsageError(str("the variable ", name, " is not set although ", because,
                         " is; start with: tessera run -n N -- program"));
  }
  return *value;
}

// The first host of a Slurm node list: "node[07-09,12],login1" begins with "node07".
std::string first_host(const std::string& list) {
  const auto bracket = list.find('[');
  const auto comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

void check(const Launch& launch) {
  if (launch.size < 1 || launch.rank >= launch.size) {
    throw UsageError(str("this process is told to be rank ", launch.rank, " of ", launch.size,
                         " by ", launch.launcher, "; ranks are 0 to N-1"));
  }
}

}  // namespace

Launch detect_launch() {
  Launch launch;
  if (variable("RANK") || variable("WORLD_SIZE")) {
    launch.launcher = "torchrun";
    launch.rank = need("RANK", "WORLD_SIZE");
    launch.size = need("WORLD_SIZE", "RANK");
    launch.local_rank = number("LOCAL_RANK").value_or(launch.rank);
    launch.local_size = number("LOCAL_WORLD_SIZE").value_or(launch.size);
    if (launch.size > 1) {
      launch.master_address = variable("MASTER_ADDR").value_or("127.0.0.1");
      launch.master_port = need("MASTER_PORT", "WORLD_SIZE");
    }
    launch.launcher_hosts_store =
        variable("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
    launch.run = str(variable("TORCHELASTIC_RUN_ID").value_or("run"), "/",
                     variable("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  } else if (variable("OMPI_COMM_WORLD_SIZE")) {
    launch.launcher = "mpirun";
    launch.rank = need("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.size = *number("OMPI_COMM_WORLD_SIZE");
    launch.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
    launch.local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1);
    launch.run = "mpirun";
  } else if (variable("SLURM_PROCID") && variable("SLURM_NTASKS") && variable("SLURM_STEP_ID")) {
    launch.launcher = "srun";
    launch.rank = *number("SLURM_PROCID");
    launch.size = *number("SLURM_NTASKS");
    launch.local_rank = number("SLURM_LOCALID").value_or(0);
    launch.local_size = number("SLURM_NTASKS_PER_NODE").value_or(1);
    const auto nodes = variable("SLURM_STEP_NODELIST");
    launch.master_address =
        variable("MASTER_ADDR").value_or(nodes ? first_host(*nodes) : "127.0.0.1");
    // Every task of a step computes the same port, and two steps of a host hardly ever the same.
    const long long job = number("SLURM_JOB_ID").value_or(0);
    const int step = number("SLURM_STEP_ID").value_or(0);
    launch.master_port =
        number("MASTER_PORT").value_or(static_cast<int>(20000 + (job * 31 + step) % 20000));
    launch.run = str("slurm/", job, ".", step);
  }
  check(launch);
  return launch;
}

}  // namespace tessera::comm
