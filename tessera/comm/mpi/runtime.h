#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/mpi/transfer.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::mpi {

struct MpiProgress;

// Whether this build has MPI, and if not, why not and what to do about it.
bool available() noexcept;
std::string why_not();
std::string version();  // "Open MPI v4.1.4 (MPI 3.1)", or "" where there is none

// MPI in this process, which has one. A progress thread makes every MPI call; other threads hand it
// messages and wait for them.
//
// [Note: one thread] MPI libraries are at their most reliable when a single thread calls them, and
// most move data only while somebody calls them. So this thread polls: it yields while messages
// come one after another, then sleeps longer and longer, up to a millisecond with a message
// pending and to a hundredth of a second with none (never for ever: a small message that MPI took
// over may still be in its own queue).
//
// [Note: report first] After a failure (abandon) the thread never calls MPI again, so nothing is
// written to memory that its owner may free, and nothing can block. Whoever waits finds the reason
// through Liveness and throws. The job is aborted only when the process exits, after main has had
// its chance to print: MPI_Abort kills the other ranks, and MPI_Finalize would wait for the lost
// one.
class Runtime {
 public:
  // Starts MPI; collective over the processes that mpirun or srun started. While a runtime is
  // alive, gives that one. Throws UsageError in a build without MPI, after MPI was ended, and if
  // the program has called MPI_Init itself without MPI_THREAD_MULTIPLE.
  static std::shared_ptr<Runtime> start();

  // Meets the others in a last barrier and ends MPI, unless the runtime was abandoned or an
  // exception is on its way up.
  ~Runtime();

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // Messages between the same two ranks under the same tag keep their order. Any size; a receive
  // of up to 1 GiB may be for more than comes. Tags are 0 to max_tag().
  TransferPtr send(const void* data, std::size_t bytes, int to, int tag,
                   std::shared_ptr<EventCount> events, std::shared_ptr<void> keep = {});
  TransferPtr receive(void* data, std::size_t bytes, int from, int tag,
                      std::shared_ptr<EventCount> events, std::shared_ptr<void> keep = {});
  int max_tag() const noexcept { return max_tag_; }
  std::uint64_t sent_bytes() const noexcept;  // handed to MPI so far, headers included

  // For the time before there is a store. Collective over all ranks; they throw PeerError naming
  // the rank that did not come.
  std::string broadcast_string(std::string text, int root,
                               std::chrono::milliseconds timeout = std::chrono::minutes(5));
  std::vector<std::string> all_gather_strings(
      const std::string& text, std::chrono::milliseconds timeout = std::chrono::minutes(5));

  // While `peers` lives, the runtime is abandoned on a failure that it knows of, and a death ends
  // the last barrier instead of blocking it. Not kept alive: a rank that is done should let its
  // peers know before it waits for them here. Of several, the first that is alive counts.
  void watch_peers(const std::shared_ptr<Peers>& peers);

  // Gives MPI up; see [Note: report first]. Returns when the thread has stopped calling MPI.
  void abandon() noexcept;
  bool broken() const noexcept;

  // A group number above all that this process has used, and its use: false, and nothing is
  // changed, if meanwhile it is not above them any more. [Note: tags] in wire.h
  int next_group_number() const noexcept;
  bool claim_group_number(int number) noexcept;

 private:
  Runtime();
  TransferPtr hand_over(TransferPtr transfer);

  std::unique_ptr<MpiProgress> progress_;
  int rank_ = 0;
  int size_ = 1;
  int max_tag_ = 0;
};

}  // namespace tessera::comm::mpi
