#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/call_log.h"
#include "tessera/comm/nccl/api.h"
#include "tessera/comm/nccl/launch_order.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/record.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm::nccl {

// Properties of a group that its threads use.
struct GroupContext {
  std::string group;
  c10::Device device;
  bool deterministic = false;
  std::chrono::milliseconds timeout;
  std::shared_ptr<Peers> peers;
  std::vector<int> members;  // ranks of the job, by rank of the group
  std::shared_ptr<TrafficMeter> meter;
  std::shared_ptr<LaunchOrder> order;  // shared by all groups of the process
};

// One call to be launched on the GPU.
struct Submission {
  Collective call;  // `peer` is a rank of the channel's communicator
  std::uint64_t number = 0;
  std::shared_ptr<void> keep;
  // Null for a call that its ranks have agreed on before. Otherwise returns when every rank of the
  // channel has made this call, or throws, and opens the channel if this is its first call. Runs on
  // another thread than the caller's, and owns all it uses, because a thread that hangs is detached
  // when the group is destroyed.
  std::function<void()> prepare;
  // First call of its kind: NCCL may have to connect, which waits for the other ranks.
  bool connects = false;
  // Called after the call has ended, with the times at which it began and ended on the GPU.
  std::function<void(Observer::Time begin, Observer::Time end)> ran;
  Record record;  // compared with those of the other ranks
};

// Launches the calls of a group's communicators and monitors them on the GPU.
//
// [Note: channels] A channel is a communicator with its own stream: one for the collectives of the
// group, and one for each directed pair of ranks that exchange messages. Calls of one communicator
// run one after another on the GPU, and a send ends only when the other rank receives. With one
// communicator for all messages, two ranks that both send before they receive would deadlock unless
// the two calls were grouped. A caller that posts receives early, as pipelines do, cannot group
// them, because it does not know which of its neighbors sends first. A rank of a pipeline has two
// neighbors and so four such channels; each is created at its first message.
//
// A call makes the channel's stream wait for the work that is in the caller's stream at that time,
// and is enqueued on the channel's stream: immediately by the caller if the ranks have agreed on it
// before, otherwise by another thread after they have agreed ([Note: launch order]). So NCCL never
// connects on a caller's thread, where it could block because a peer is gone (except with
// Check::never). Work::wait() blocks the calling thread until the call is enqueued, which for a new
// call means until every rank has made it. For the result it only makes the caller's stream wait.
//
// [Note: one call] A call with parts (a bucket or a unit) is one ncclGroup. NCCL runs it as one
// kernel (a few if there are hundreds of parts), with one event before it and one after it on the
// channel's stream. Packing the parts into one buffer, rank by rank, would also make it one NCCL
// operation, but needs a pass over the bytes and a second buffer: for gpt2-xl in bf16, 3 GB read
// and written in each direction of each step, 2 · 1.4 ms on an H200. That pass is also slow for
// small parts. And the elements that a rank owns must not depend on which parts travel together
// ([Note: parts]).
//
// [Note: report first] While calls run on the GPU, a watchdog thread checks whether a peer died or
// reported a failure, NCCL reported an error, or the timeout has passed. Then it notifies all
// ranks, fails every call that has not ended, and finally aborts the communicators. Only an abort
// ends kernels that wait for a dead rank, and their output must not be taken for a result.
//
// [Note: captured calls] Calls made while the caller's stream is captured into a CUDA graph become
// part of the graph. They have not run, so there is nothing to monitor, to agree on or to time, and
// the graph's owner keeps the buffers alive. Every replay runs them again. The caller of the replay
// counts their traffic (Group::add_traffic) and waits for the graph with its own timeout.
class NcclProgress {
 public:
  struct Channel;

  NcclProgress(const Api& api, GroupContext context);
  // Completes all submitted calls. During stack unwinding by an exception, makes them fail instead.
  ~NcclProgress();
  NcclProgress(const NcclProgress&) = delete;
  NcclProgress& operator=(const NcclProgress&) = delete;

  enum class Use { collectives, messages };
  // Adds a channel in which this process is `rank` of `ranks`; `turns` lists all of them.
  Channel& add_channel(int rank, int ranks, Use use, LaunchTurn::Call turns);
  // Sets the log with which the channel's calls are compared with those of its other ranks.
  static void set_log(Channel& channel, std::shared_ptr<CallLog> log);
  // Appends a submission to the channel. If the group has failed, throws its error.
  Work submit(Channel& channel, Submission submission);

  // Creates the channel's communicator. Collective over its ranks. Called only by
  // Submission::prepare.
  static void open(Channel& channel, const UniqueId& id);
  // Creates the channel's communicator by splitting that of another group's channel. Collective
  // over the parent's ranks; those with the same color get a communicator, ordered by key. Called
  // only by Submission::prepare, and only if Api::comm_split is not null.
  static void open_by_split(Channel& channel, Channel& parent, int color, int key);

  // Registers memory that many calls of the channel will use; the handle's deleter deregisters it.
  // Returns null if this NCCL cannot register it.
  std::shared_ptr<void> register_buffer(Channel& channel, void* data, std::size_t bytes);

 private:
  struct State;
  struct Item;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm::nccl
