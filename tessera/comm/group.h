#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/call.h"

namespace tessera::comm {

class Backend;
class Observer;
class SymmetricMemory;
struct Collective;

// One tensor per rank, in memory that all ranks have mapped, so that collectives need no staging
// copies. This object and the tensors it returns keep the memory alive.
class SymmetricTensor {
 public:
  // Called by Group::symmetric(). local() is the part of `rank`.
  SymmetricTensor(std::shared_ptr<SymmetricMemory> memory, at::IntArrayRef sizes,
                  at::ScalarType dtype, int rank);

  const at::Tensor& local() const { return local_; }
  at::Tensor of(int rank) const;  // a peer's tensor; the caller synchronizes accesses to it
  const std::shared_ptr<SymmetricMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<SymmetricMemory> memory_;
  at::Tensor local_;
};

// Handle of a group of ranks. Cheap to copy. A default-constructed Group has one rank, and all its
// collectives are the identity.
//
// All operations are asynchronous: they return immediately and run in the order of the calls. The
// result is valid after Work::wait(). All ranks of the group make the same calls in the same order;
// otherwise all get a UsageError that prints the differing calls. Tensors must be contiguous. They
// are kept alive, but must not be accessed before wait(). Buffers are split as [Note: shards]
// describes, so sizes need not be multiples of the number of ranks.
//
// Thread safety: all ranks must make the calls of one group in the same order, so use a group from
// one thread and create another with subset() for another thread. Different groups are independent.
class Group {
 public:
  Group();
  // Wraps a started backend. Programs call init() instead.
  explicit Group(std::shared_ptr<Backend> backend);

  int rank() const;
  int size() const;
  std::string name() const;
  std::string backend() const;  // for messages
  // Capabilities of the backend; see Backend.
  bool shares_memory() const;
  bool simulated() const;
  bool on_device() const;
  TrafficCounts traffic() const;
  // Adds traffic of graph replays. A call captured into a CUDA graph is counted once, at capture,
  // so one replay sends the difference of traffic() before and after the capture. Add that
  // difference for the second and every later replay.
  void add_traffic(const TrafficCounts& counts) const;

  // Registers a device tensor that many calls use, so that NCCL can access it directly instead of
  // through its own buffers. Keep the handle as long as the tensor, but not longer than the group.
  // Returns null if registration has no benefit.
  std::shared_ptr<void> register_buffer(const at::Tensor& buffer) const;

  // Returns a description of this rank's last call; "" if there was none. For diagnostics.
  std::string last_call() const;

  // Sets the observer of this rank's calls, for all copies of this handle; null removes it. Groups
  // of one rank report nothing.
  void observe(std::shared_ptr<Observer> observer) const;

  // Replaces x with the reduction of all ranks' tensors.
  Work all_reduce(const at::Tensor& x, const Call& call = {}) const;
  // Writes the reduction to out and leaves in unchanged.
  Work all_reduce(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // out: this rank's shard of the reduction. In place: out is that shard of in.
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // in: this rank's shard of out. In place: in is that shard of out.
  Work all_gather(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // Copies x of root to x of all ranks.
  Work broadcast(const at::Tensor& x, int root, const Call& call = {}) const;
  // Replaces x of root with the reduction; x of the other ranks does not change.
  Work reduce(const at::Tensor& x, int root, const Call& call = {}) const;
  // in: one shard for every rank. out: this rank's shard from every rank.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // Sends in_counts[r] elements to rank r and receives out_counts[r] elements from it. Both tensors
  // have these parts one after another, in rank order. Zero counts are allowed. in_counts[s] of
  // rank r must equal out_counts[r] of rank s: [Note: unequal counts] in collective.h.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in,
                  const std::vector<std::size_t>& out_counts,
                  const std::vector<std::size_t>& in_counts, const Call& call = {}) const;
  // Sends between two ranks keep their order; they are independent of all other calls.
  Work send(const at::Tensor& x, int to, const Call& call = {}) const;
  // x must have the size and type of the tensor that the other rank sends.
  Work recv(const at::Tensor& x, int from, const Call& call = {}) const;
  // Blocks the calling thread until every rank has called it.
  void barrier() const;

  // Allocates a zeroed tensor of this shape on every rank. Collective.
  SymmetricTensor symmetric(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const;

  // Creates a group of `ranks` of this group, in their order. Collective over `ranks`, which
  // include the caller and all pass the same list and label.
  Group subset(const std::vector<int>& ranks, const std::string& label) const;

  // Collective over this group. Every rank passes the list it is in, and the lists partition the
  // group; otherwise equal to subset(). NCCL splits its communicator, which is cheaper than a new
  // one.
  Group partition(const std::vector<int>& ranks, const std::string& label) const;

  // Collective over this group. Ranks that pass the same color form a group, ordered by key, then
  // by rank in this group. With a negative color the caller gets a group of one.
  Group split(int color, int key = 0, const std::string& label = "split") const;

 private:
  struct State;
  // Returns a unique name for the subgroup. Throws UsageError if this rank is not in it.
  std::string name_subset(const std::vector<int>& ranks, const std::string& label) const;
  Work submit(Collective what, const at::Tensor& out, const at::Tensor& in) const;
  Work submit_parts(const Collective& what, const at::Tensor& out, const at::Tensor& in) const;

  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm
