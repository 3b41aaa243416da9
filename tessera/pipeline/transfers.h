#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/schedule/schedule.h"

namespace tessera::pipeline {

// Message over the boundary between two stages. Boundary b is between stages b and b + 1.
// Activations go up, gradients go down.
struct Message {
  bool up = true;
  int micro = 0;
  int boundary = 0;

  friend auto operator<=>(const Message&, const Message&) = default;
};
std::string describe(const Message& message);

// Value that one stage sends to the next for a micro-batch: one tensor, or several of any type.
// Floating-point tensors may get a gradient.
struct Value {
  std::vector<at::Tensor> tensors;
  bool list = false;  // the next stage takes a vector, even of one tensor
  // [tensor]: gets a gradient from the next stage. A single tensor always does.
  std::vector<bool> differentiable = {};
};

// Returns a contiguous tensor as it is, or as bytes if groups do not support its type (bool, …).
at::Tensor movable(const at::Tensor& tensor);

// Messages between a rank and the others. Incoming ones are in the order in which they are sent.
struct Route {
  std::vector<std::vector<Message>> from;                   // [rank]
  std::map<Message, std::pair<int, std::size_t>> incoming;  // sender and index in from[sender]
  std::map<Message, int> outgoing;                          // receiver
};
Route make_route(const schedule::Schedule& schedule, int rank);

// Moves activations and gradients between the stages of a pipeline. A rank waits only for the
// message that it needs next.
//
// [Note: no deadlock] Sends never block. Messages between two ranks keep their order, so receives
// are posted in the order of the sends of the other rank, which follows from its list of actions. A
// message that is needed later may arrive first and is kept. So a receive waits only until its
// sender reaches the send, which happens in a validated schedule.
//
// [Note: shapes] The first activation over each boundary in a step is preceded by a message with
// the types and shapes of its tensors. They also apply to the other micro-batches of the step and
// to the gradients. If shapes differ between micro-batches, every activation is preceded by one.
class Transfers {
 public:
  // Shapes of activations over a boundary: the same in a step, or different for each micro-batch.
  enum class Shapes : std::uint8_t { of_step, of_each };

  // `simulated`: for a simulated group, a tensor with the shape and type of every activation.
  Transfers(comm::Group group, int boundaries, c10::Device device, int ahead,
            Shapes shapes = Shapes::of_step, at::Tensor simulated = {});

  void begin(const Route& route);  // starts a step; `route` must live until finish()
  // Stores a message for send(), or for take() if both stages are on this rank. Throws UsageError
  // if the activations over a boundary differ in shape within a step.
  void put(const Message& message, Value value);
  void send(const Message& message);
  void receive(const Message& message);  // waits until it has arrived
  // Removes and returns a message that was put or received.
  Value take(const Message& message);
  // Posts the next receives whose shapes are known, up to `ahead` for each rank.
  void look_ahead();
  void finish();  // waits until all sends are done

 private:
  struct Shape {
    at::ScalarType dtype = at::kFloat;
    bool differentiable = true;
    std::vector<std::int64_t> sizes;
    bool operator==(const Shape&) const = default;
  };
  struct ValueShape {
    bool list = false;
    std::vector<Shape> tensors;
    bool operator==(const ValueShape&) const = default;
  };
  struct Posted {
    Value value;
    std::vector<comm::Work> works;  // one per tensor
  };
  struct Channel {           // incoming messages of one rank
    std::size_t posted = 0;  // number of messages for which a receive was posted
    std::size_t taken = 0;   // number of messages that were waited for
    std::map<std::size_t, Posted> pending;
  };
  static std::string text(const ValueShape& shape);
  std::optional<ValueShape>& shape(int boundary) {
    return shapes_[static_cast<std::size_t>(boundary)];
  }
  void send_shape(const Message& message, int to);
  ValueShape receive_shape(int boundary, int from) const;
  void post(int rank, bool may_wait);
  void keep(comm::Work work);

  comm::Group group_;
  at::Tensor simulated_;
  c10::Device device_;
  std::size_t ahead_;
  Shapes kind_;
  std::vector<std::optional<ValueShape>> shapes_;  // [boundary], in this step
  std::vector<bool> shape_sent_;                   // [boundary]: the shape was sent
  const Route* route_ = nullptr;
  std::vector<Channel> channels_;  // [rank]
  std::map<Message, Value> values_;
  std::deque<comm::Work> sending_;
};

}  // namespace tessera::pipeline
