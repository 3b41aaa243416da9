#include "tessera/comm/launch.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/comm/address.h"
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
        str("the variable ", name, " is ", quote(*text), "; must be an integer from 0 to 10^9"));
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

int port_of(const char* name, int port) {
  if (port >= 1 && port <= 65535) return port;
  throw UsageError(str("the variable ", name, " is ", port, "; must be a port from 1 to 65535"));
}

// The first host of a Slurm node list: "node[07-09,12],login1" begins with "node07".
std::string first_host(const std::string& list) {
  const auto bracket = list.find('[');
  const auto comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

// Returns the number of tasks of a Slurm step on this node: "2(x3),1" is two on each of three
// nodes, then one.
int tasks_of_this_node() {
  const auto list = variable("SLURM_STEP_TASKS_PER_NODE");
  const auto node = number("SLURM_NODEID");
  const char* at = list ? list->data() : nullptr;
  const char* const end = list ? at + list->size() : nullptr;
  for (int first = 0; node && at < end;) {
    int tasks = 0, nodes = 1;
    at = std::from_chars(at, end, tasks).ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      at = std::from_chars(at + 2, end, nodes).ptr + 1;
    }
    if (*node < first + nodes && tasks > 0) return tasks;
    first += nodes;
    if (at >= end || *at != ',') break;
    ++at;
  }
  return number("SLURM_NTASKS_PER_NODE").value_or(1);
}

// Parses "address:port" as set by tessera run.
void read_store(const std::string& text, Launch& launch) {
  const auto colon = text.rfind(':');
  int port = 0;
  const char* const end = text.data() + text.size();
  const char* const begin = colon == std::string::npos ? end : text.data() + colon + 1;
  const auto [rest, error] = std::from_chars(begin, end, port);
  if (colon == 0 || error != std::errc() || rest != end || port < 1 || port > 65535) {
    throw UsageError(str("the variable TESSERA_STORE is ", quote(text),
                         "; must be address:port, as tessera run sets it"));
  }
  launch.master_address = text.substr(0, colon);
  launch.master_port = port;
}

// Returns an address of the host of Open MPI's mpirun, which sets
// OMPI_MCA_orte_hnp_uri=7.0;tcp://10.0.0.1,10.1.0.1:5000;tcp6://[fd00::1]:5001. "": not set.
std::string mpirun_address() {
  constexpr std::string_view kScheme = "tcp://";
  const std::string text = variable("OMPI_MCA_orte_hnp_uri").value_or("");
  const auto begin = text.find(kScheme);
  if (begin == std::string::npos) return "";
  const auto rest = text.substr(begin + kScheme.size());
  return rest.substr(0, rest.find_first_of(",:;"));
}

// Variables that an mpirun sets for each rank.
struct MpirunVariables {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr MpirunVariables kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr MpirunVariables kHydra = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// [Note: meeting under mpirun] No MPI library is used, so ranks meet at a store in rank 0, as those
// of srun do. On one host rank 0 chooses a free port and passes its number through a Unix socket
// that is named after the job ([Note: sources of the secret]). On several hosts the address is
// MASTER_ADDR, or else that of the host of Open MPI's mpirun, on which rank 0 usually runs; the
// port is MASTER_PORT, or else computed from the id of the job.
void read_mpirun(const MpirunVariables& names, Launch& launch) {
  launch.launcher = "mpirun";
  launch.rank = need(names.rank, names.size);
  launch.size = need(names.size, names.rank);
  launch.local_rank = number(names.local_rank).value_or(0);
  launch.local_size = number(names.local_size).value_or(1);
  launch.knows_local_rank = number(names.local_rank).has_value();
  launch.one_host = launch.local_size == launch.size;
  const auto job = variable("PMIX_NAMESPACE");  // of Open MPI
  // Without an id of the job, ranks of one host are those started from one terminal or batch job.
  launch.run = str("mpirun/", job               ? *job
                              : launch.one_host ? str("session ", getsid(0))
                                                : std::string());
  const auto port = number("MASTER_PORT");
  if (port) launch.master_port = port_of("MASTER_PORT", *port);
  if (launch.one_host) return;
  launch.master_address = variable("MASTER_ADDR").value_or(mpirun_address());
  if (!port && job) {
    unsigned hash = 0;
    for (const char c : *job) hash = hash * 31 + static_cast<unsigned char>(c);
    launch.master_port = static_cast<int>(20000 + hash % 12000);
  }
  if (launch.master_address.empty() || launch.master_port == 0) {
    throw UsageError(
        "mpirun started ranks on several hosts, but not with the address of rank 0. Pass the name "
        "or address of its host and a free port: mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500 "
        "…, or with MPICH and Intel MPI: mpiexec -genv MASTER_ADDR host0 -genv MASTER_PORT 29500 "
        "…");
  }
}

void check(const Launch& launch) {
  if (launch.size < 1 || launch.rank >= launch.size) {
    throw UsageError(str("the variables of ", launch.launcher, " make this process rank ",
                         launch.rank, " of ", launch.size, "; ranks must be 0 to N-1"));
  }
}

}  // namespace

Launch detect_launch() {
  Launch launch;
  if (variable("RANK") || variable("WORLD_SIZE")) {
    launch.launcher = "torchrun";
    launch.rank = need("RANK", "WORLD_SIZE");
    launch.size = need("WORLD_SIZE", "RANK");
    launch.c10d_store = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
    const auto store = variable("TESSERA_STORE");
    launch.launcher_hosts_store = launch.c10d_store || store;
    if (store && !launch.c10d_store) {
      read_store(*store, launch);
    } else if (launch.size > 1) {
      launch.master_address = variable("MASTER_ADDR").value_or("127.0.0.1");
      launch.master_port = port_of("MASTER_PORT", need("MASTER_PORT", "WORLD_SIZE"));
    }
    launch.one_host = number("LOCAL_WORLD_SIZE") == launch.size ||
                      is_loopback(launch.master_address) || launch.master_address == "localhost";
    // A Kubernetes PyTorchJob sets neither: each of its ranks has its own pod.
    launch.local_size = number("LOCAL_WORLD_SIZE").value_or(launch.one_host ? launch.size : 1);
    launch.local_rank = number("LOCAL_RANK").value_or(launch.one_host ? launch.rank : 0);
    launch.knows_local_rank = launch.one_host || number("LOCAL_RANK");
    launch.run = str(variable("TORCHELASTIC_RUN_ID").value_or("run"), "/",
                     variable("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  } else if (variable("OMPI_COMM_WORLD_SIZE")) {
    read_mpirun(kOpenMpi, launch);
  } else if (variable("PMI_SIZE") && (variable("MPI_LOCALNRANKS") || !variable("SLURM_PROCID"))) {
    // Before Slurm's: in a Slurm job Hydra's helpers are tasks of srun, and ranks inherit from
    // them.
    read_mpirun(kHydra, launch);
  } else if (variable("SLURM_PROCID") && variable("SLURM_NTASKS") && variable("SLURM_STEP_ID")) {
    launch.launcher = "srun";
    launch.rank = *number("SLURM_PROCID");
    launch.size = *number("SLURM_NTASKS");
    launch.local_rank = number("SLURM_LOCALID").value_or(0);
    launch.local_size = tasks_of_this_node();
    launch.knows_local_rank = number("SLURM_LOCALID").has_value();
    const auto hosts = number("SLURM_STEP_NUM_NODES");
    launch.one_host = (hosts ? hosts : number("SLURM_NNODES")) == 1;
    auto nodes = variable("SLURM_STEP_NODELIST");
    if (!nodes) nodes = variable("SLURM_NODELIST");
    launch.master_address =
        variable("MASTER_ADDR").value_or(nodes ? first_host(*nodes) : "127.0.0.1");
    // All tasks of a step compute the same port; two steps on a host almost never compute the same
    // one.
    const long long job = number("SLURM_JOB_ID").value_or(0);
    const int step = number("SLURM_STEP_ID").value_or(0);
    launch.master_port = port_of(
        "MASTER_PORT",
        number("MASTER_PORT").value_or(static_cast<int>(20000 + (job * 31 + step) % 20000)));
    launch.run = str("slurm/", job, ".", step);
  }
  launch.secret_fd = number("TESSERA_SECRET_FD").value_or(-1);
  launch.secret_file = variable("TESSERA_SECRET_FILE").value_or("");
  launch.interface = variable("TESSERA_INTERFACE").value_or("");
  launch.check_every_call = number("TESSERA_CHECK_EVERY_CALL").value_or(0) != 0;
  // Without a launcher that hosts the store, rank 0 does. If all ranks are on this host, it listens
  // only at the loopback address.
  if (launch.one_host && !launch.launcher_hosts_store) {
    launch.master_address = "127.0.0.1";
  }
  check(launch);
  return launch;
}

}  // namespace tessera::comm
