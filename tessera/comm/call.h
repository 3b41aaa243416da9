#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::comm {

// Operations of a group, in the order of TrafficCounts::calls.
enum class Op : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  barrier,
  send,
  recv,
};
inline constexpr int kOpCount = 9;

// "all_reduce": for messages and traces.
const char* name(Op op) noexcept;
// Returns whether the operation involves two ranks rather than the whole group.
constexpr bool is_point_to_point(Op op) noexcept { return op == Op::send || op == Op::recv; }
// Returns whether the operation combines the values of ranks, so that their order affects the bits.
constexpr bool is_reduction(Op op) noexcept {
  return op == Op::all_reduce || op == Op::reduce_scatter || op == Op::reduce;
}

// Accounting category of a transfer. Gradients and parameters are `model` traffic, which the
// planner predicts to the byte; norms, losses, buffers and everything else are `control`.
enum class Traffic : std::uint8_t { model, control };

// Function that combines the values of the ranks.
enum class ReduceOp : std::uint8_t { sum, avg, min, max };
// Returns the name for messages: "sum".
const char* name(ReduceOp op) noexcept;

// [Note: shards] A buffer of `count` elements over N ranks is split into N shards of
// ceil(count / N) elements; the last ones are shorter or empty. Parameters are padded so that their
// shards are equal: [Note: shards of a parameter] in core/shard.h.
struct Shard {
  std::size_t begin = 0;
  std::size_t size = 0;
};
// Returns the distance in elements between the beginnings of two shards: ceil(count / ranks).
std::size_t shard_stride(std::size_t count, int ranks) noexcept;
// Returns a rank's shard of a buffer.
Shard shard_of(std::size_t count, int ranks, int rank) noexcept;

// Optional arguments of a call.
//
// [Note: parts] With `parts`, the buffer of a reduce_scatter or all_gather is a concatenation of
// several buffers, each split into its own shards. Many parameters can then travel in one call, and
// the elements that a rank owns do not depend on which parameters travel together. The small buffer
// is the concatenation of this rank's shards. If it is the large buffer itself (in == out), each
// shard stays at its position there.
//
// [Note: copies] With `copies` R, a reduce_scatter over N ranks splits the buffer into N / R
// shards. Rank r gets shard r mod (N / R), so R ranks get the same shard. Shards are summed over
// all N ranks in rank order, as without copies, so their bits do not depend on R. Not in place.
// Requires ranks that share memory; other backends use a reduce_scatter and an all_reduce, which
// sum in another order.
struct Call {
  ReduceOp op = ReduceOp::sum;
  Traffic traffic = Traffic::model;
  std::string label;  // the tensor's name in messages; the same on every rank
  // reduce_scatter and all_gather of several concatenated buffers: [Note: parts].
  std::shared_ptr<const std::vector<std::size_t>> parts = nullptr;
  int copies = 1;       // of each shard of a reduce_scatter: [Note: copies]
  bool shared = false;  // all_gather of memory that all ranks have mapped: nothing is copied
};

// State of an operation behind a Work, implemented by each backend.
class WorkState {
 public:
  virtual ~WorkState() = default;
  // Waits until the result may be read. Throws if the operation failed.
  virtual void wait() = 0;
  // Returns whether wait() would return or throw immediately.
  virtual bool done() const = 0;
};

// Handle of an asynchronous operation. Cheap to copy. Without the handle the operation continues
// and keeps its buffers alive, but only wait() reports a failure. A default-constructed Work is
// complete. Any thread may wait.
class [[nodiscard]] Work {
 public:
  Work() = default;
  // Called by backends.
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Waits until the result may be read. Throws if the operation failed. For CPU buffers it blocks
  // the calling thread; for CUDA buffers it makes the current stream wait.
  void wait() const {
    if (state_) state_->wait();
  }

  // Returns whether wait() would return or throw immediately.
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<WorkState> state_;
};

// Traffic of one rank in one group. Subtract two readings to get that of an interval.
struct TrafficCounts {
  std::uint64_t sent_bytes = 0;     // ring-equivalent, Traffic::model, padding included
  std::uint64_t control_bytes = 0;  // ring-equivalent, Traffic::control
  std::uint64_t copied_bytes = 0;   // physically written by this rank's copy and reduce loops
  // Time in these loops, for backends that have them. For nccl: the time that calls ran on the GPU,
  // including waits for other ranks.
  std::uint64_t busy_ns = 0;
  std::array<std::uint64_t, kOpCount> calls{};  // number of calls by Op
};
// Returns the traffic between two readings.
TrafficCounts operator-(const TrafficCounts& later, const TrafficCounts& earlier) noexcept;
// Returns the traffic of two groups together.
TrafficCounts operator+(const TrafficCounts& one, const TrafficCounts& other) noexcept;

// Emulated link that is slower than the shared memory of a host, for experiments. 0 disables a
// limit.
struct LinkOptions {
  double bandwidth = 0;  // bytes per second sent by one rank
  double latency = 0;    // seconds per step of a ring
  bool slowed() const { return bandwidth > 0 || latency > 0; }
};

// Options common to all backends.
struct GroupOptions {
  // Maximum wait for a peer that is alive but does not make the matching call.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Time to spin before sleeping. 0 sleeps immediately; negative chooses by ranks and cores.
  std::chrono::microseconds spin{-1};
  LinkOptions link = {};  // shm only
};

}  // namespace tessera::comm
