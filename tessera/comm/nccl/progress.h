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

// What the threads of a group know of it.
struct GroupContext {
  std::string group;
  c10::Device device;
  bool deterministic = false;
  std::chrono::milliseconds timeout;
  std::shared_ptr<Peers> peers;
  std::vector<int> members;  // ranks of the job, by rank of the group
  std::shared_ptr<TrafficMeter> meter;
  std::shared_ptr<LaunchOrder> order;  // of the process: all its groups have the same
};

// One call on its way to the GPU.
struct Submission {
  Collective call;  // `peer` is a rank of the channel's communicator
  std::uint64_t number = 0;
  std::shared_ptr<void> keep;
  // Null for a call that its ranks have agreed on before. Else it returns when every rank of the
  // channel has made this call, or throws, and opens the channel if this is the first call. Runs on
  // another thread than the caller's, and owns what it uses: a thread that hangs is left behind
  // when the group goes.
  std::function<void()> prepare;
  // The first of its kind: NCCL may have to make connections, which waits for the other ranks.
  bool connects = false;
  // Told when it has ended from when to when it was on the GPU.
  std::function<void(Observer::Time begin, Observer::Time end)> ran;
  Record record;  // as the ranks compare it
};

// Feeds a group's communicators and watches over what runs on the GPU.
//
// [Note: channels] A channel is a communicator and a stream of its own: one for the collectives of
// the group, and one for each directed pair of ranks that exchange messages. Calls of one
// communicator run one after another on the GPU, and a send ends only when the other rank receives.
// With one communicator for all messages, two ranks that both send before they receive would wait
// for each other, unless the two calls were grouped. A caller that posts receives ahead, as
// pipelines do, cannot group them: it does not know which of its neighbors sends first. A rank of
// a pipeline has two neighbors, so four such channels; none is made before its first message.
//
// A call makes the channel's stream wait for what the caller's stream had done at that time, and is
// enqueued there: at once by the caller if the ranks know it, else when they have agreed on it, by
// another thread ([Note: launch order]). So NCCL makes its connections, where it may block because
// a peer has gone, on no thread of the caller. Work::wait() blocks the calling thread until the
// call is enqueued, which for a new one means until every rank has made it; for the result itself
// it only makes the caller's stream wait.
//
// [Note: one call] A call with parts, which is a bucket or a unit, is one ncclGroup: NCCL makes one
// kernel of it (a few where there are hundreds of parts), and we one event before and two behind
// it. Packing the parts into one buffer, rank by rank, would make it one operation of NCCL too, but
// costs a pass over the bytes and a second buffer (for gpt2-xl in bf16 3 GB read and written each
// way of each step, 2 · 1.4 ms of an H200), and small parts are what the pass is slow at as well;
// while which elements a rank owns must not depend on what travels together ([Note: parts]).
//
// [Note: report first] One more thread, the watchdog, looks while anything runs on the GPU whether
// a peer died or reported a failure, NCCL found an error, or the time is up. Then it tells all
// ranks, fails every call that has not ended, and last aborts the communicators: kernels that wait
// for a dead rank end only so, and what they leave behind must not pass for a result.
//
// [Note: captured calls] Calls made while the caller's stream is captured into a CUDA graph go into
// the graph. Nothing has run, so there is nothing to watch, to agree on or to time, and the graph's
// owner keeps the buffers. Every replay runs them again; whoever replays counts that
// (Group::add_traffic), and waits for the graph with a deadline of his own.
class NcclProgress {
 public:
  struct Channel;

  NcclProgress(const Api& api, GroupContext context);
  // Ends what was submitted; if an exception is on its way up, gives it up instead.
  ~NcclProgress();
  NcclProgress(const NcclProgress&) = delete;
  NcclProgress& operator=(const NcclProgress&) = delete;

  enum class Use { collectives, messages };
  // A channel in which this process is `rank` of `ranks`; `turns` names them all.
  Channel& add_channel(int rank, int ranks, Use use, LaunchTurn::Call turns);
  // Where the channel's calls are compared with those of its other ranks.
  static void set_log(Channel& channel, std::shared_ptr<CallLog> log);
  // Puts a submission behind the others of the channel. Throws what ended the group, if anything
  // did.
  Work submit(Channel& channel, Submission submission);

  // Makes the channel's communicator; all its ranks call it at the same time. Only in
  // Submission::prepare.
  static void open(Channel& channel, const UniqueId& id);
  // Makes the channel's communicator from that of another group's channel. All ranks of the parent
  // call it at the same time, and those with the same color get a communicator, ordered by key.
  // Only in Submission::prepare, and only if Api::comm_split is there.
  static void open_by_split(Channel& channel, Channel& parent, int color, int key);

  // Tells NCCL of memory that calls of the channel will use again and again. The handle ends that.
  // Null if this NCCL has no such function or refuses.
  std::shared_ptr<void> register_buffer(Channel& channel, void* data, std::size_t bytes);

 private:
  struct State;
  struct Item;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm::nccl
