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
struct Setting {
  std::string group;
  c10::Device device;
  bool deterministic = false;
  std::chrono::milliseconds timeout;
  std::shared_ptr<Peers> peers;
  std::vector<int> members;  // ranks of the job, by rank of the group
  std::shared_ptr<TrafficMeter> meter;
};

// One call on its way to the GPU.
struct Order {
  Collective call;  // `peer` is a rank of the lane's communicator
  std::uint64_t number = 0;
  std::shared_ptr<void> keep;
  // Returns when every rank of the lane has made this call, or throws. Runs on the lane's thread
  // and opens the lane if this is the first call. Owns what it uses: a thread that hangs is left
  // behind when the group goes.
  std::function<void()> prepare;
};

// Feeds a group's communicators and watches over what runs on the GPU.
//
// [Note: lanes] A lane is a communicator, a stream of its own and a thread that feeds them: one
// lane for the collectives of the group, and one for each neighbour and direction of send and recv,
// so that a message waits only for the messages before it. Only that thread calls NCCL: should NCCL
// block because a peer has gone, no caller is blocked with it.
//
// The thread takes an order, waits until the ranks have agreed on it, makes the stream wait for
// what the caller's stream had done at the time of the call, and enqueues it. Work::wait() blocks
// the calling thread until then, that is until every rank has made the call; for the result itself
// it only makes the caller's stream wait.
//
// [Note: report first] One more thread looks, while anything runs on the GPU, whether a peer died
// or reported a failure, NCCL found an error, or the time is up. Then it tells all ranks, fails
// every call that has not ended, and last aborts the communicators: kernels that wait for a dead
// rank end only so, and what they leave behind must not pass for a result.
//
// Calls made while the caller's stream is captured into a CUDA graph go into the graph and are not
// watched; the graph's owner keeps their buffers.
class Engine {
 public:
  struct Lane;

  Engine(const Api& api, Setting setting);
  // Ends what was submitted; if an exception is on its way up, gives it up instead.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A lane in which this process is `rank` of `ranks`.
  Lane& add_lane(int rank, int ranks);
  // Puts an order behind the others of the lane. Throws what ended the group, if anything did.
  Work submit(Lane& lane, Order order);

  // Makes the lane's communicator; all its ranks call it at the same time. Only in Order::prepare.
  static void open(Lane& lane, const UniqueId& id);

 private:
  struct State;
  struct Item;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm::nccl
