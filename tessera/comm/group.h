#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/observer.h"

namespace tessera::comm {

// What a call may say besides its tensors.
struct Call {
  ReduceOp op = ReduceOp::sum;
  Traffic traffic = Traffic::model;
  std::string label;  // the tensor's name in messages; the same on every rank
  // reduce_scatter and all_gather of several buffers in a row: [Note: parts] in collective.h.
  std::shared_ptr<const std::vector<std::size_t>> parts = nullptr;
  int copies = 1;       // of each shard of a reduce_scatter: [Note: copies] in collective.h
  bool shared = false;  // all_gather of memory that all ranks have mapped: nothing is copied
};

// A tensor of which every rank has one, in memory that all of them have mapped: collectives on it
// copy nothing. Keeps the memory alive, and so do the tensors it hands out.
class SymmetricTensor {
 public:
  // Group::symmetric() makes them; `rank` is whose part local() is.
  SymmetricTensor(std::shared_ptr<SymmetricMemory> memory, at::IntArrayRef sizes,
                  at::ScalarType dtype, int rank);

  const at::Tensor& local() const { return local_; }
  at::Tensor of(int rank) const;  // a peer's; when it may be read or written is up to the caller
  const std::shared_ptr<SymmetricMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<SymmetricMemory> memory_;
  at::Tensor local_;
};

// A handle of a group of ranks: a small value, copied freely. In a group of one rank, which is what
// a default-constructed Group is, every collective is the identity.
//
// All operations are asynchronous: they return at once, run in the order of the calls, and their
// result is there after Work::wait(). All ranks of the group make the same calls in the same order;
// if they do not, all get a UsageError that prints both sides. Tensors must be contiguous. They are
// kept alive, but must not be touched before wait(). Buffers are cut as [Note: shards] says, so
// sizes need not divide by the number of ranks.
//
// Thread safety: calls of one group from several threads must reach every rank in the same order,
// so use a group from one thread, and subset() for another thread. Different groups are
// independent.
class Group {
 public:
  Group();
  // A handle of a backend that somebody has started; init() does both.
  explicit Group(std::shared_ptr<Backend> backend);

  int rank() const { return state_->backend->rank(); }
  int size() const { return state_->backend->size(); }
  std::string name() const { return state_->backend->name(); }
  std::string backend() const { return state_->backend->kind(); }  // for messages
  // What the backend can; see Backend.
  bool shares_memory() const { return state_->backend->shares_memory(); }
  bool simulated() const { return state_->backend->simulated(); }
  bool on_device() const { return state_->backend->on_device(); }
  TrafficCounts traffic() const { return state_->backend->traffic(); }
  // A call that goes into a CUDA graph is counted when it is captured, as if it ran then. So what
  // the graph sends is the difference of traffic() before and after the capture; whoever replays it
  // counts that for the second replay and every later one.
  void add_traffic(const TrafficCounts& counts) const { state_->backend->add_traffic(counts); }

  // For a device tensor that calls use again and again: NCCL may then read and write it directly
  // instead of through its own buffers. Keep the handle as long as the tensor, and not longer than
  // the group. Null where that is of no use.
  std::shared_ptr<void> register_buffer(const at::Tensor& buffer) const;

  // The call that this rank made last, in words; "" if there was none. For diagnostics.
  std::string last_call() const;

  // From now on the observer hears of this rank's calls, whichever copy of this handle makes them;
  // null ends that. A group of one rank has nothing to report.
  void observe(std::shared_ptr<Observer> observer) const;

  // In place: x becomes what the ranks' tensors make together.
  Work all_reduce(const at::Tensor& x, const Call& call = {}) const;
  // The same into another tensor; in stays as it is.
  Work all_reduce(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // out: this rank's shard of in. In place: out is that part of in.
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // in: this rank's shard of out. In place: in is that part of out.
  Work all_gather(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // x becomes root's everywhere.
  Work broadcast(const at::Tensor& x, int root, const Call& call = {}) const;
  Work reduce(const at::Tensor& x, int root, const Call& call = {}) const;  // changed on root only
  // in: one shard for every rank. out: this rank's shard from every rank.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, const Call& call = {}) const;
  // Ordered between the same two ranks; independent of everything else.
  Work send(const at::Tensor& x, int to, const Call& call = {}) const;
  // Of the size and type that the other rank sends.
  Work recv(const at::Tensor& x, int from, const Call& call = {}) const;
  // Blocks the calling thread until every rank has called it.
  void barrier() const;

  // Collective. A tensor like this on every rank; the contents are zero.
  SymmetricTensor symmetric(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const;

  // Collective over `ranks` (of this group), whose order is the order of the new group; the caller
  // is one of them, and all of them pass the same list and label.
  Group subset(const std::vector<int>& ranks, const std::string& label) const;

  // Collective over this group. Every rank passes the list it is in, and the lists partition the
  // group; otherwise as subset(). NCCL splits its communicator, which is cheaper than a new one.
  Group partition(const std::vector<int>& ranks, const std::string& label) const;

  // Collective over this group. Ranks that give the same colour form a group, ordered by key, then
  // by rank here. With a negative colour the caller gets a group of its own.
  Group split(int color, int key = 0, const std::string& label = "split") const;

 private:
  struct State {
    std::shared_ptr<Backend> backend;
    std::mutex mutex;
    std::map<std::string, int> subsets;  // how often each was made, to give each a new name
    std::mutex last_mutex;
    Collective last;  // without its buffers
    std::shared_ptr<Observer> observer;
    std::uint64_t calls = 0;
  };
  // Returns a name for the subgroup that no earlier one has. Throws if this rank is not in it.
  std::string name_subset(const std::vector<int>& ranks, const std::string& label) const;
  Work submit(Collective what, const at::Tensor& out, const at::Tensor& in) const;
  Work submit_parts(const Collective& what, const at::Tensor& out, const at::Tensor& in) const;

  std::shared_ptr<State> state_;
};

// Throws UsageError for types that no backend moves.
DType to_dtype(at::ScalarType type);

}  // namespace tessera::comm
