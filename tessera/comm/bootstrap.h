#pragma once

#include <string>

#include "tessera/comm/group.h"

namespace tessera::comm {

// How this process was started, as its environment tells.
struct Launch {
  std::string launcher = "alone";  // "torchrun" (and tessera run), "mpirun", "srun" or "alone"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  bool knows_local_rank = false;  // else nobody said: 0, or the rank where all are on one host
  bool one_host = false;          // all ranks are surely on one
  std::string master_address;     // of the store; empty under plain mpirun: MPI passes it round
  int master_port = 0;
  bool launcher_hosts_store = false;  // otherwise rank 0 does
  bool c10d_store = false;            // the agent of a torchrun hosts one of c10d's, not ours
  std::string run;                    // tells one run from another with the same store or secret
  int secret_fd = -1;                 // inherited descriptor that holds the job's secret
  std::string secret_file;            // or the file that does
  std::string interface;              // "" is the one that leads to the store
  bool check_every_call = false;      // nccl: see NcclOptions::Check
};

// Reads the variables of tessera run and torchrun (RANK, WORLD_SIZE, …), of Open MPI's mpirun and
// of Slurm's srun, in this order, and TESSERA_STORE (address:port, by tessera run),
// TESSERA_SECRET_FD, TESSERA_SECRET_FILE, TESSERA_INTERFACE and TESSERA_CHECK_EVERY_CALL. Throws
// UsageError when they make no sense.
Launch detect_launch();

// What init() is told; the defaults suit every launcher.
struct InitOptions {
  // "auto" is shm on one host and two-level on several; for tensors on GPUs nccl, where every rank
  // has one of its own. Or "shm", "mpi", "two-level", "nccl"; or "dry": this process alone is rank
  // `dry_rank` of `dry_ranks`, as dry/backend.h says.
  std::string backend = "auto";
  int dry_ranks = 1;
  int dry_rank = 0;
  bool cuda = false;  // the tensors will be on GPUs
  GroupOptions comm;
  bool deterministic = false;  // nccl: sums in rank order, as everywhere else
  // Name or address of the network interface at which to listen for other hosts. "" is that of
  // TESSERA_INTERFACE, else the one that leads to the store.
  std::string interface;
};

// Joins the job that this process was started in and returns the group of all its ranks; started
// alone it is a group of one. Collective over the job. When the last handle of the group goes, this
// rank tells the others that it leaves.
Group init(const InitOptions& options = {});

}  // namespace tessera::comm
