#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/nccl/api.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm::nccl {

// What the threads of a group know of it.
struct GroupContext {
  std::string group;
  c10::Device device;
  bool deterministic = false;
  std::chrono::milliseconds timeout;
  std::shared_ptr<Peers> peers;
  std::vector<int> members;  // ranks of the job, by rank of the group
  std::shared_ptr<TrafficMeter> meter;
};

// One call on its way to the GPU.
struct Submission {
  Collective call;  // `peer` is a rank of the channel's communicator
  std::uint64_t number = 0;
  std::shared_ptr<void> keep;
  // Returns when every rank of the channel has made this call, or throws. Runs on the channel's
  // thread and opens the channel if this is the first call. Owns what it uses: a thread that hangs
  // is left behind when the group goes.
  std::function<void()> prepare;
};

// Feeds a group's communicators and watches over what runs on the GPU.
//
// [Note: channels] A channel is a communicator, a stream of its own and a thread that feeds them:
// one channel for the collectives of the group, and one for each neighbour and direction of send
// and recv, so that a message waits only for the messages before it. Only that thread calls NCCL:
// should NCCL block because a peer has gone, no caller is blocked with it.
//
// The thread takes a submission, waits until the ranks have agreed on it, makes the stream wait for
// what the caller's stream had done at the time of the call, and enqueues it. Work::wait() blocks
// the calling thread until then, that is until every rank has made the call; for the result itself
// it only makes the caller's stream wait.
//
// [Note: report first] One more thread, the watchdog, looks while anything runs on the GPU whether
// a peer died or reported a failure, NCCL found an error, or the time is up. Then it tells all
// ranks, fails every call that has not ended, and last aborts the communicators: kernels that wait
// for a dead rank end only so, and what they leave behind must not pass for a result.
//
// Calls made while the caller's stream is captured into a CUDA graph go into the graph and are not
// watched; the graph's owner keeps their buffers.
class NcclProgress {
 public:
  struct Channel;

  NcclProgress(const Api& api, GroupContext context);
  // Ends what was submitted; if an exception is on its way up, gives it up instead.
  ~NcclProgress();
  NcclProgress(const NcclProgress&) = delete;
  NcclProgress& operator=(const NcclProgress&) = delete;

  // A channel in which this process is `rank` of `ranks`.
  Channel& add_channel(int rank, int ranks);
  // Puts a submission behind the others of the channel. Throws what ended the group, if anything
  // did.
  Work submit(Channel& channel, Submission submission);

  // Makes the channel's communicator; all its ranks call it at the same time. Only in
  // Submission::prepare.
  static void open(Channel& channel, const UniqueId& id);

 private:
  struct State;
  struct Item;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm::nccl
