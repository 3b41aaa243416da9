// Which launcher started this process, and which rank it is. The only place in comm/ that reads
// the environment.

#include <charconv>
#include <cstdlib>
#include <optional>

#include "tessera/comm/address.h"
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

int port_of(const char* name, int port) {
  if (port >= 1 && port <= 65535) return port;
  throw UsageError(str("the variable ", name, " is ", port, "; a port is 1 to 65535"));
}

// The first host of a Slurm node list: "node[07-09,12],login1" begins with "node07".
std::string first_host(const std::string& list) {
  const auto bracket = list.find('[');
  const auto comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

// How many tasks a Slurm step has on this node: "2(x3),1" are two on each of three nodes, then one.
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

// "address:port", as tessera run tells it.
void read_store(const std::string& text, Launch& launch) {
  const auto colon = text.rfind(':');
  int port = 0;
  const char* const end = text.data() + text.size();
  const char* const begin = colon == std::string::npos ? end : text.data() + colon + 1;
  const auto [rest, error] = std::from_chars(begin, end, port);
  if (colon == 0 || error != std::errc() || rest != end || port < 1 || port > 65535) {
    throw UsageError(str("the variable TESSERA_STORE is ", quote(text),
                         "; wanted address:port, as tessera run sets it"));
  }
  launch.master_address = text.substr(0, colon);
  launch.master_port = port;
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
    // A Kubernetes PyTorchJob says neither: its ranks have a pod of their own each.
    launch.local_size = number("LOCAL_WORLD_SIZE").value_or(launch.one_host ? launch.size : 1);
    launch.local_rank = number("LOCAL_RANK").value_or(launch.one_host ? launch.rank : 0);
    launch.knows_local_rank = launch.one_host || number("LOCAL_RANK");
    launch.run = str(variable("TORCHELASTIC_RUN_ID").value_or("run"), "/",
                     variable("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  } else if (variable("OMPI_COMM_WORLD_SIZE")) {
    launch.launcher = "mpirun";
    launch.rank = need("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.size = *number("OMPI_COMM_WORLD_SIZE");
    launch.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
    launch.local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1);
    launch.knows_local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK").has_value();
    launch.one_host = launch.local_size == launch.size;
    launch.run = "mpirun";
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
    // Every task of a step computes the same port, and two steps of a host hardly ever the same.
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
  // Under Slurm and by hand rank 0 hosts the store; if all are here, where only they can reach it.
  if (launch.one_host && !launch.launcher_hosts_store && !launch.master_address.empty()) {
    launch.master_address = "127.0.0.1";
  }
  check(launch);
  return launch;
}

}  // namespace tessera::comm
