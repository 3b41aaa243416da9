#include "tessera/pipeline/transfers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"

namespace tessera::pipeline {
namespace {

using schedule::Kind;

constexpr std::int64_t kMaxDims = 8, kMaxTensors = 8;
// Words of a shape: type, differentiable or not, number of dims, sizes.
constexpr std::int64_t kShapeWords = 3 + kMaxDims;
// Words of a header: list or not, number of tensors, shape of each.
constexpr std::int64_t kHeader = 2 + kMaxTensors * kShapeWords;

comm::Call call_of(const Message& message) {
  comm::Call call;
  call.label = describe(message);
  return call;
}

comm::Call header_call(int boundary) {
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = str("shape of the output of stage ", boundary);
  return call;
}

}  // namespace

std::string describe(const Message& message) {
  const int low = message.boundary, high = message.boundary + 1;
  return message.up
             ? str("activation of micro-batch ", message.micro, " from stage ", low, " to ", high)
             : str("gradient of micro-batch ", message.micro, " from stage ", high, " to ", low);
}

at::Tensor movable(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kInt:
    case at::kLong:
    case at::kByte: return tensor;
    default: return tensor.view(-1).view(at::kByte);
  }
}

Route make_route(const schedule::Schedule& schedule, int rank) {
  Route route;
  route.from.resize(static_cast<std::size_t>(schedule.ranks));
  std::vector<int> rank_of(static_cast<std::size_t>(schedule.stage_count()));
  for (int r = 0; r < schedule.ranks; ++r) {
    for (int c = 0; c < schedule.chunks; ++c) {
      rank_of[static_cast<std::size_t>(schedule.stage(r, c))] = r;
    }
  }
  for (int r = 0; r < schedule.ranks; ++r) {
    for (const schedule::Action& action : schedule.actions[static_cast<std::size_t>(r)]) {
      const bool up = action.kind == Kind::send_activation;
      if (!up && action.kind != Kind::send_gradient) continue;
      const int stage = schedule.stage(r, action.chunk);
      const Message message{up, action.micro, up ? stage : stage - 1};
      const int to = rank_of[static_cast<std::size_t>(up ? stage + 1 : stage - 1)];
      if (r == rank) route.outgoing[message] = to;
      if (to != rank) continue;
      auto& channel = route.from[static_cast<std::size_t>(r)];
      route.incoming[message] = {r, channel.size()};
      channel.push_back(message);
    }
  }
  return route;
}

Transfers::Transfers(comm::Group group, int boundaries, c10::Device device, int ahead,
                     Shapes shapes, at::Tensor simulated)
    : group_(std::move(group)),
      simulated_(std::move(simulated)),
      device_(device),
      ahead_(static_cast<std::size_t>(ahead)),
      kind_(shapes),
      shapes_(static_cast<std::size_t>(boundaries)),
      shape_sent_(static_cast<std::size_t>(boundaries), false) {}

std::string Transfers::text(const ValueShape& shape) {
  std::vector<std::string> tensors;
  for (const Shape& each : shape.tensors) {
    tensors.push_back(tessera::str(at::IntArrayRef(each.sizes), " ", c10::toString(each.dtype),
                                   shape.list && !each.differentiable ? " without gradient" : ""));
  }
  return shape.list ? str("(", join(tensors, ", "), ")") : join(tensors, ", ");
}

void Transfers::begin(const Route& route) {
  route_ = &route;
  channels_.assign(route.from.size(), {});
  shapes_.assign(shapes_.size(), std::nullopt);
  shape_sent_.assign(shape_sent_.size(), false);
}

void Transfers::put(const Message& message, Value value) {
  if (message.up) {
    ValueShape now{value.list, {}};
    for (std::size_t i = 0; i < value.tensors.size(); ++i) {
      const at::Tensor& tensor = value.tensors[i];
      now.tensors.push_back({tensor.scalar_type(),
                             value.differentiable.empty() || value.differentiable[i],
                             tensor.sizes().vec()});
    }
    std::optional<ValueShape>& known = shape(message.boundary);
    if (!known || kind_ == Shapes::of_each) {
      known = std::move(now);
    } else if (*known != now) {
      throw UsageError(str(describe(message), " has shape ", text(now),
                           ", but an earlier micro-batch of this step had ", text(*known),
                           ". In a pipeline all micro-batches of one step must have the same ",
                           "shape: pad them, or run micro-batches of another shape in a separate ",
                           "step."));
    }
  }
  values_[message] = std::move(value);
}

void Transfers::send_shape(const Message& message, int to) {
  const ValueShape& own = *shape(message.boundary);
  at::Tensor header = at::empty({kHeader}, at::kLong);
  auto* words = header.mutable_data_ptr<std::int64_t>();
  std::fill_n(words, kHeader, 0);
  if (static_cast<std::int64_t>(own.tensors.size()) > kMaxTensors) {
    throw UsageError(str(describe(message), " has ", own.tensors.size(),
                         " tensors. A layer may return at most ", kMaxTensors,
                         " to the next stage."));
  }
  *words++ = own.list ? 1 : 0;
  *words++ = static_cast<std::int64_t>(own.tensors.size());
  for (const Shape& each : own.tensors) {
    if (static_cast<std::int64_t>(each.sizes.size()) > kMaxDims) {
      throw UsageError(
          str(describe(message), ": got ", each.sizes.size(), " dims; must be at most ", kMaxDims));
    }
    words[0] = static_cast<std::int64_t>(each.dtype);
    words[1] = each.differentiable ? 1 : 0;
    words[2] = static_cast<std::int64_t>(each.sizes.size());
    std::copy(each.sizes.begin(), each.sizes.end(), words + 3);
    words += kShapeWords;
  }
  keep(group_.send(header, to, header_call(message.boundary)));
}

Transfers::ValueShape Transfers::receive_shape(int boundary, int from) const {
  if (group_.simulated()) {
    if (simulated_.defined()) {
      return {false, {{simulated_.scalar_type(), true, simulated_.sizes().vec()}}};
    }
    throw UsageError(str("stage ", boundary,
                         " does not run in a dry run, so the shape of its output is unknown. Set "
                         "ParallelOptions::dry_boundary"));
  }
  at::Tensor header = at::empty({kHeader}, at::kLong);
  group_.recv(header, from, header_call(boundary)).wait();
  const auto* words = header.const_data_ptr<std::int64_t>();
  ValueShape shape{words[0] != 0, {}};
  const std::int64_t tensors = words[1];
  words += 2;
  for (std::int64_t i = 0; i < tensors; ++i, words += kShapeWords) {
    shape.tensors.push_back({static_cast<at::ScalarType>(words[0]), words[1] != 0,
                             std::vector<std::int64_t>(words + 3, words + 3 + words[2])});
  }
  return shape;
}

void Transfers::send(const Message& message) {
  const int to = route_->outgoing.at(message);
  const auto boundary = static_cast<std::size_t>(message.boundary);
  if (message.up && (!shape_sent_[boundary] || kind_ == Shapes::of_each)) {
    send_shape(message, to);
    shape_sent_[boundary] = true;
  }
  const Value value = take(message);
  for (const at::Tensor& tensor : value.tensors) {
    if (tensor.defined()) keep(group_.send(movable(tensor), to, call_of(message)));
  }
}

void Transfers::keep(comm::Work work) {
  while (!sending_.empty() && sending_.front().done()) {
    sending_.front().wait();  // throws its error
    sending_.pop_front();
  }
  sending_.push_back(std::move(work));
}

// Posts the next receive from a rank. Without `may_wait`, only if its shape is already known.
void Transfers::post(int rank, bool may_wait) {
  Channel& channel = channels_[static_cast<std::size_t>(rank)];
  const Message& message = route_->from[static_cast<std::size_t>(rank)][channel.posted];
  std::optional<ValueShape>& known = shape(message.boundary);
  if (!known || (kind_ == Shapes::of_each && message.up)) {
    if (!may_wait) return;
    known = receive_shape(message.boundary, rank);
  }
  // An activation is kept for backward; a gradient is used immediately.
  const memory::CategoryScope scope(message.up ? MemoryCategory::activations
                                               : MemoryCategory::buffers);
  Posted posted;
  posted.value.list = known->list;
  for (const Shape& each : known->tensors) {
    posted.value.differentiable.push_back(each.differentiable);
    at::Tensor& tensor = posted.value.tensors.emplace_back();
    if (!message.up && !each.differentiable) continue;  // it has no gradient
    tensor = at::empty(each.sizes, at::TensorOptions(device_).dtype(each.dtype));
    posted.works.push_back(group_.recv(movable(tensor), rank, call_of(message)));
  }
  channel.pending.emplace(channel.posted++, std::move(posted));
}

void Transfers::receive(const Message& message) {
  const auto [rank, position] = route_->incoming.at(message);
  Channel& channel = channels_[static_cast<std::size_t>(rank)];
  while (channel.posted <= position) post(rank, /*may_wait=*/true);
  auto node = channel.pending.extract(position);
  for (const comm::Work& work : node.mapped().works) work.wait();
  ++channel.taken;
  values_[message] = std::move(node.mapped().value);
}

Value Transfers::take(const Message& message) {
  auto node = values_.extract(message);
  if (node.empty()) throw Error(str(describe(message), " was not received"));
  return std::move(node.mapped());
}

void Transfers::look_ahead() {
  for (std::size_t r = 0; r < channels_.size(); ++r) {
    Channel& channel = channels_[r];
    while (channel.posted < route_->from[r].size() && channel.posted - channel.taken < ahead_) {
      const std::size_t before = channel.posted;
      post(static_cast<int>(r), /*may_wait=*/false);
      if (channel.posted == before) break;
    }
  }
}

void Transfers::finish() {
  for (const comm::Work& work : sending_) work.wait();
  sending_.clear();
  route_ = nullptr;
}

}  // namespace tessera::pipeline
