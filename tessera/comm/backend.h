#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tessera/comm/collective.h"
#include "tessera/comm/observer.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/work.h"

namespace tessera::comm {

// For experiments: a link that is slower than the memory that ranks of a host share. 0: as fast as
// it goes.
struct LinkOptions {
  double bandwidth = 0;  // bytes per second that a rank sends
  double latency = 0;    // seconds, of each step of a ring
  bool slowed() const { return bandwidth > 0 || latency > 0; }
};

// Knobs that every backend understands.
struct GroupOptions {
  // How long a rank waits for another one that is alive but does not come.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // How long it spins before it sleeps; 0 sleeps at once. Negative: chosen from ranks and cores.
  std::chrono::microseconds spin{-1};
  LinkOptions link = {};  // of shm alone
};

// What an operation carries besides its buffers.
struct Attachments {
  std::shared_ptr<void> keep = {};    // kept alive until the operation has ended
  std::function<void()> before = {};  // run just before it, on the thread that runs it
  std::function<void()> after = {};   // and just after it succeeded
  // Told when it has succeeded: from when to when it ran.
  std::function<void(Observer::Time begin, Observer::Time end)> ran = {};
};

// Memory that every rank of a group has mapped: N equal parts side by side, part r belonging to
// rank r. Collectives on it read and write the peers' parts directly.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  // Where rank's part begins, in this process.
  virtual void* part(int rank) const = 0;
  virtual std::size_t part_bytes() const = 0;  // the distance between two parts, a multiple of 64
};

// One rank's end of one group. Calls return at once and run in the order of submission; all ranks
// submit the same collectives in the same order (send and recv are ordered per pair instead).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string kind() const = 0;  // "shm", "mpi", "nccl", "dry", "two-level"
  virtual std::string name() const = 0;  // of the group, for messages

  // Starts a call. What goes wrong comes out of Work::wait().
  virtual Work submit(Collective call, Attachments attachments = {}) = 0;

  // Collective over the group. Throws UsageError where the backend has no such memory.
  virtual std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) = 0;

  // Collective over `members` (ranks of this group, ascending or not; their order is the order of
  // the new group). Only members call it, all with the same list and name.
  virtual std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) = 0;
  // Collective over the whole group, which the lists of all ranks partition. Otherwise as
  // subgroup(); a backend may derive the new groups from this one, which is cheaper.
  virtual std::shared_ptr<Backend> partition(std::span<const int> members, std::string name) {
    return subgroup(members, std::move(name));
  }

  virtual TrafficCounts traffic() const = 0;
  // Counts what was sent without a call: by the replay of a CUDA graph that holds calls.
  virtual void add_traffic(const TrafficCounts&) {}

  // Tells the backend of memory that calls will use again and again, so that it may reach it more
  // directly; until the handle goes, which is before the memory does. Null where that is no use.
  virtual std::shared_ptr<void> register_buffer(void*, std::size_t) { return nullptr; }

  // What it can; callers ask for this and never compare kind().
  //
  // Every rank has mapped the symmetric memory of all others, so calls may be `shared`.
  virtual bool shares_memory() const { return false; }
  // The other ranks are not there: sizes and traffic are real, values that they would send are not.
  virtual bool simulated() const { return false; }
  // Its buffers are on a GPU; host() moves what is not.
  virtual bool on_device() const { return false; }
  // submit() takes calls with parts; elsewhere Group splits them up.
  virtual bool takes_parts() const { return false; }

  // A backend over the same ranks that moves host memory: itself, unless it lives on devices.
  virtual Backend& host() { return *this; }
};

}  // namespace tessera::comm
