#pragma once

#include <string>

#include "tessera/comm/group.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

// How this process was started, as its environment tells.
struct Launch {
  std::string launcher = "alone";  // "torchrun" (and tessera run), "mpirun", "srun" or "alone"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string master_address;  // empty under plain mpirun: MPI itself passes it round
  int master_port = 0;
  bool launcher_hosts_store = false;  // otherwise rank 0 does
  std::string run;                    // tells one run from another in the same store
};

// Reads the variables of tessera run and torchrun (RANK, WORLD_SIZE, …), of Open MPI's mpirun and
// of Slurm's srun, in this order. Throws UsageError when they make no sense.
Launch detect_launch();

struct InitOptions {
  // "auto" is shm on one host and two-level on several. Or "shm", "mpi", "two-level", "nccl".
  std::string backend = "auto";
  Options comm;
  bool deterministic = false;  // nccl: sums in rank order, as everywhere else
};

// Joins the job that this process was started in and returns the group of all its ranks; started
// alone it is a group of one. Collective over the job. When the last handle of the group goes, this
// rank says goodbye.
Group init(const InitOptions& options = {});

// Rendezvous over c10d's TCPStore. `host` starts the server in this process; with port 0 it takes a
// free one.
struct TcpStore {
  std::shared_ptr<Store> store;
  int port = 0;
};
TcpStore open_tcp_store(const std::string& address, int port, bool host,
                        std::chrono::milliseconds timeout, const std::string& prefix);

}  // namespace tessera::comm
