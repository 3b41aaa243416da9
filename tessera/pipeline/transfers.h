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

// What goes over a boundary: boundary b is between the stages b and b + 1. Activations go up,
// gradients go down.
struct Message {
  bool up = true;
  int micro = 0;
  int boundary = 0;

  friend auto operator<=>(const Message&, const Message&) = default;
};
std::string describe(const Message& message);

// Value that one stage sends to the next for a micro-batch: one tensor, or several of any type, of
// which the floating-point ones may get a gradient.
struct Value {
  std::vector<at::Tensor> tensors;
  bool list = false;  // a list, even of one tensor: the next stage takes a vector
  // [tensor]: gets a gradient from the next stage. A single tensor always does.
  std::vector<bool> differentiable = {};
};

// The tensor itself, or its bytes where groups do not move its type (bool, int16, …). Contiguous.
at::Tensor movable(const at::Tensor& tensor);

// Which messages come to a rank from each other rank, in the order in which they are sent.
struct Route {
  std::vector<std::vector<Message>> from;                   // [rank]
  std::map<Message, std::pair<int, std::size_t>> incoming;  // rank and position in its line
  std::map<Message, int> outgoing;                          // to which rank
};
Route make_route(const schedule::Schedule& schedule, int rank);

// Moves activations and gradients between the stages of a pipeline, without anybody waiting for
// more than what is needed next.
//
// [Note: no deadlock] Sends never wait. Between two ranks messages keep their order, so receives
// are posted in the order in which the other side sends, which its list of actions tells; a message
// that is needed later may come first, and lies ready then. So whoever waits for a message waits
// only for its sender to get there, which a validated schedule promises.
//
// [Note: shapes] The first activation over each boundary in a step is preceded by a message with
// the types and shapes of its tensors; for the rest of the step both sides know them, for gradients
// too. Where shapes differ between micro-batches, every activation is preceded by one.
class Transfers {
 public:
  enum class Shapes : std::uint8_t { of_step, of_each };  // which activations have the same

  // `simulated`: a tensor of the shape and type of every activation, for a group that is simulated.
  Transfers(comm::Group group, int boundaries, c10::Device device, int ahead,
            Shapes shapes = Shapes::of_step, at::Tensor simulated = {});

  void begin(const Route& route);  // a step; `route` lives until finish()
  // Leaves a message here: for send(), or for take() where both stages are on this rank. Throws
  // UsageError if the activations over one boundary in one step differ in shape.
  void put(const Message& message, Value value);
  void send(const Message& message);
  void receive(const Message& message);  // waits for it
  Value take(const Message& message);
  // Posts receives of what comes next, where shapes are known, up to `ahead` for each rank.
  void look_ahead();
  void finish();  // waits until everything has left

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
    std::vector<comm::Work> works;  // of each tensor
  };
  struct Line {
    std::size_t posted = 0;  // messages of it for which a receive was posted
    std::size_t taken = 0;   // and of which the result was waited for
    std::map<std::size_t, Posted> under_way;
  };
  static std::string text(const ValueShape& shape);
  std::optional<ValueShape>& shape(int boundary) {
    return shapes_[static_cast<std::size_t>(boundary)];
  }
  void announce(const Message& message, int to);
  ValueShape hear(int boundary, int from) const;
  void post(int rank, bool may_wait);
  void keep(comm::Work work);

  comm::Group group_;
  at::Tensor simulated_;
  c10::Device device_;
  std::size_t ahead_;
  Shapes kind_;
  std::vector<std::optional<ValueShape>> shapes_;  // [boundary], in this step
  std::vector<bool> announced_;                    // [boundary]: the other side knows the shape
  const Route* route_ = nullptr;
  std::vector<Line> lines_;  // [rank]
  std::map<Message, Value> here_;
  std::deque<comm::Work> sending_;
};

}  // namespace tessera::pipeline
