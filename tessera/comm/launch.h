#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tessera::comm {

class Store;

// Rank, size and rendezvous of this process, from its environment.
struct Launch {
  std::string launcher = "alone";  // "torchrun" (and tessera run), "mpirun", "srun" or "alone"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  bool knows_local_rank = false;  // false: local_rank is the default 0, not set by the launcher
  bool one_host = false;          // all ranks are known to be on one host
  std::string master_address;     // of the store
  int master_port = 0;            // 0: all ranks are on one host, and rank 0 selects a free port
  bool launcher_hosts_store = false;  // otherwise rank 0 hosts it
  bool c10d_store = false;            // the store is the c10d store of torchrun's agent
  std::string run;                // identifies the run among those with the same store or secret
  int secret_fd = -1;             // inherited descriptor of the job's secret; -1: none
  std::string secret_file;        // file with the job's secret; "": none
  std::string interface;          // "" selects the interface that routes to the store
  bool check_every_call = false;  // nccl: see NcclOptions::Check
};

// Reads the variables of tessera run and torchrun (RANK, WORLD_SIZE, …), of mpirun (Open MPI's, or
// Hydra of MPICH and Intel MPI), or of Slurm's srun; the first launcher found wins. Also reads
// TESSERA_STORE (address:port, set by tessera run), TESSERA_SECRET_FD, TESSERA_SECRET_FILE,
// TESSERA_INTERFACE and TESSERA_CHECK_EVERY_CALL. Throws UsageError if they are inconsistent.
Launch detect_launch();

// Connects to the store that the launcher of this process hosts.
std::shared_ptr<Store> connect_launcher_store(std::chrono::milliseconds timeout);

}  // namespace tessera::comm
