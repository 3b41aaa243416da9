#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tessera/comm/call.h"
#include "tessera/comm/collective.h"
#include "tessera/comm/observer.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm {

// Callbacks and lifetime of an operation.
struct Attachments {
  std::shared_ptr<void> keep = {};    // kept alive until the operation has ended
  std::function<void()> before = {};  // called just before it, on the thread that runs it
  std::function<void()> after = {};   // called just after it succeeded, on the same thread
  // Called after it succeeded, with the time it began and ended.
  std::function<void(Observer::Time begin, Observer::Time end)> ran = {};
};

// Memory mapped by every rank of a group: N equal, adjacent parts, of which part r belongs to rank
// r. Collectives on it read and write the parts of peers directly.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  // Returns the address, in this process, of a rank's part.
  virtual void* part(int rank) const = 0;
  virtual std::size_t part_bytes() const = 0;  // distance between parts, a multiple of 64
};

// One rank's endpoint in one group. Calls return immediately and run in the order of submission.
// All ranks submit the same collectives in the same order; send and recv are ordered per pair of
// ranks.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string kind() const = 0;  // "shm", "two-level", "nccl", "tcp", "dry"
  virtual std::string name() const = 0;  // of the group, for messages

  // Starts a call. Work::wait() throws its errors.
  virtual Work submit(Collective call, Attachments attachments = {}) = 0;

  // Allocates symmetric memory. Collective over the group. Throws UsageError if the backend has
  // none.
  virtual std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) = 0;

  // Creates a group of `members`, which are ranks of this group; their order becomes the order of
  // the new group. Collective over `members`, which all pass the same list and name.
  virtual std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) = 0;
  // Collective over the whole group: the lists of all ranks partition it. Otherwise equal to
  // subgroup(), but a backend may derive the new groups from this one, which is cheaper.
  virtual std::shared_ptr<Backend> partition(std::span<const int> members, std::string name) {
    return subgroup(members, std::move(name));
  }

  virtual TrafficCounts traffic() const = 0;
  // Adds traffic that was sent without a call, by the replay of a CUDA graph that contains calls.
  virtual void add_traffic(const TrafficCounts&) {}

  // Registers memory that many calls will use, so that the backend may access it more directly.
  // Destroy the handle before the memory. Returns null if registration has no benefit.
  virtual std::shared_ptr<void> register_buffer(void*, std::size_t) { return nullptr; }

  // Capabilities. Callers query these and never compare kind().
  //
  // Every rank has mapped the symmetric memory of all ranks, so calls may be `shared`.
  virtual bool shares_memory() const { return false; }
  // The other ranks do not exist: sizes and traffic are real, but values received from them are
  // not.
  virtual bool simulated() const { return false; }
  // Buffers are in GPU memory; host() is for buffers in host memory.
  virtual bool on_device() const { return false; }
  // submit() accepts calls with parts. If false, Group submits one call per part.
  virtual bool takes_parts() const { return false; }

  // Returns a backend over the same ranks for host memory; itself unless on_device().
  virtual Backend& host() { return *this; }
};

}  // namespace tessera::comm
