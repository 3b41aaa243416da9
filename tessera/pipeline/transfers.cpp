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

constexpr std::int64_t kMostDims = 8;
constexpr std::int64_t kHeader = 2 + kMostDims;  // type, number of dims, sizes

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
      auto& line = route.from[static_cast<std::size_t>(r)];
      route.incoming[message] = {r, line.size()};
      line.push_back(message);
    }
  }
  return route;
}

Transfers::Transfers(comm::Group group, int boundaries, c10::Device device, int ahead)
    : group_(std::move(group)),
      device_(device),
      ahead_(static_cast<std::size_t>(ahead)),
      shapes_(static_cast<std::size_t>(boundaries)),
      announced_(static_cast<std::size_t>(boundaries), false) {}

std::string Transfers::text(const Shape& shape) {
  return tessera::str(at::IntArrayRef(shape.sizes), " ", c10::toString(shape.dtype));
}

void Transfers::begin(const Route& route) {
  route_ = &route;
  lines_.assign(route.from.size(), {});
}

void Transfers::put(const Message& message, at::Tensor value) {
  std::optional<Shape>& known = shape(message.boundary);
  const Shape now{value.scalar_type(), value.sizes().vec()};
  if (!known) known = now;
  if (*known != now) {
    throw UsageError(str(describe(message), ": the shape is ", text(now), ", but it was ",
                         text(*known),
                         " before, and a pipeline agrees on shapes once; make a new executor for "
                         "batches of another shape"));
  }
  here_[message] = std::move(value);
}

void Transfers::send(const Message& message) {
  const int to = route_->outgoing.at(message);
  const at::Tensor value = take(message);
  const auto boundary = static_cast<std::size_t>(message.boundary);
  if (message.up && !announced_[boundary]) {
    const Shape& own = *shape(message.boundary);
    at::Tensor header = at::empty({kHeader}, at::kLong);
    auto* words = header.mutable_data_ptr<std::int64_t>();
    std::fill_n(words, kHeader, 0);
    if (static_cast<std::int64_t>(own.sizes.size()) > kMostDims) {
      throw UsageError(str(describe(message), ": got ", own.sizes.size(),
                           " dimensions, wanted at most ", kMostDims));
    }
    words[0] = static_cast<std::int64_t>(own.dtype);
    words[1] = static_cast<std::int64_t>(own.sizes.size());
    std::copy(own.sizes.begin(), own.sizes.end(), words + 2);
    keep(group_.send(header, to, header_call(message.boundary)));
    announced_[boundary] = true;
  }
  keep(group_.send(value, to, call_of(message)));
}

void Transfers::keep(comm::Work work) {
  while (!sending_.empty() && sending_.front().done()) {
    sending_.front().wait();  // throws if it failed
    sending_.pop_front();
  }
  sending_.push_back(std::move(work));
}

// Posts the next receive from a rank; without `may_wait`, only if its shape is known already.
void Transfers::post(int rank, bool may_wait) {
  Line& line = lines_[static_cast<std::size_t>(rank)];
  const Message& message = route_->from[static_cast<std::size_t>(rank)][line.posted];
  std::optional<Shape>& known = shape(message.boundary);
  if (!known) {
    if (!may_wait) return;
    at::Tensor header = at::empty({kHeader}, at::kLong);
    group_.recv(header, rank, header_call(message.boundary)).wait();
    const auto* words = header.const_data_ptr<std::int64_t>();
    known = Shape{static_cast<at::ScalarType>(words[0]),
                  std::vector<std::int64_t>(words + 2, words + 2 + words[1])};
  }
  // An activation is kept for backward; a gradient is used up at once.
  const memory::CategoryScope scope(message.up ? MemoryCategory::activations
                                               : MemoryCategory::buffers);
  at::Tensor value = at::empty(known->sizes, at::TensorOptions(device_).dtype(known->dtype));
  comm::Work work = group_.recv(value, rank, call_of(message));
  line.under_way.emplace(line.posted++, Posted{std::move(value), std::move(work)});
}

void Transfers::receive(const Message& message) {
  const auto [rank, position] = route_->incoming.at(message);
  Line& line = lines_[static_cast<std::size_t>(rank)];
  while (line.posted <= position) post(rank, /*may_wait=*/true);
  auto node = line.under_way.extract(position);
  node.mapped().work.wait();
  ++line.taken;
  here_[message] = std::move(node.mapped().value);
}

at::Tensor Transfers::take(const Message& message) {
  const auto node = here_.extract(message);
  if (node.empty()) throw Error(str(describe(message), " is not there"));
  return node.mapped();
}

void Transfers::look_ahead() {
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    while (line.posted < route_->from[r].size() && line.posted - line.taken < ahead_) {
      const std::size_t before = line.posted;
      post(static_cast<int>(r), /*may_wait=*/false);
      if (line.posted == before) break;
    }
  }
}

void Transfers::finish() {
  for (const comm::Work& work : sending_) work.wait();
  sending_.clear();
  route_ = nullptr;
}

}  // namespace tessera::pipeline
