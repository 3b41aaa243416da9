#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/mpi/transfer.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::mpi {

// The progress thread, which makes all MPI calls, and what others share with it.
struct MpiProgress {
  std::mutex mutex;
  std::condition_variable woken;    // the thread waits here
  std::condition_variable changed;  // and others for it here
  std::vector<TransferPtr> submitted;
  std::weak_ptr<Peers> peers;
  bool started = false;
  bool halted = false;
  bool stopping = false;
  bool clean = true;  // no exception was on its way when the end came
  std::exception_ptr refusal;
  std::atomic<bool> broken{false};
  std::atomic<std::uint64_t> sent{0};
  std::atomic<int> next_number{0};
  std::thread thread;

  // The thread's own.
  MPI_Comm world = MPI_COMM_NULL;
  bool owner = false;  // MPI is ours to end
  int rank = 0, size = 1, max_tag = 0;
  std::vector<MPI_Request> requests;
  std::vector<TransferPtr> owners;  // owners[i] waits for requests[i]
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;

  void init();
  void run();
  void post(const TransferPtr& transfer);
  void completed(Transfer& transfer, const MPI_Status& status, int code);
  bool poll();
  void rest(std::chrono::steady_clock::duration idle);
  void end();
  bool shutdown_barrier(std::string& reason);
  bool job_failed();
  std::optional<std::string> trouble() const;
};

}  // namespace tessera::comm::mpi
