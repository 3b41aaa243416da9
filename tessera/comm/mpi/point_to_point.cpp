#include "tessera/comm/mpi/point_to_point.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/comm/copy.h"
#include "tessera/comm/record.h"

namespace tessera::comm::mpi {
namespace {
constexpr auto kLongestWait = std::chrono::milliseconds(50);
}

struct MpiPointToPoint::MpiMessage final : PointToPointMessage {
  using PointToPointMessage::PointToPointMessage;

  std::shared_ptr<std::vector<std::byte>> header;  // the record of the call, and little data
  TransferPtr header_transfer;
  bool header_done = false;                   // it was sent, or has come and was compared
  std::optional<PiecewiseTransfer> transfer;  // of data that does not fit behind the header
};

MpiPointToPoint::MpiPointToPoint(std::shared_ptr<Runtime> runtime,
                                 std::shared_ptr<Liveness> liveness,
                                 std::shared_ptr<TrafficMeter> meter, int rank, int first_tag)
    : liveness_(std::move(liveness)),
      meter_(std::move(meter)),
      rank_(rank),
      endpoint_(std::move(runtime), liveness_, first_tag) {}

std::shared_ptr<PointToPointMessage> MpiPointToPoint::make_message(Collective call) const {
  return std::make_shared<MpiMessage>(std::move(call));
}

void MpiPointToPoint::wait(std::uint64_t seen) { endpoint_.events().wait(seen, kLongestWait); }

void MpiPointToPoint::begin(MpiMessage& message) {
  const Collective& call = message.call;
  const std::size_t payload = call.bytes() <= kSmallBytes ? call.bytes() : 0;
  if (call.op == Op::recv) {
    // As much as any header brings: what comes may not be what this call expects.
    message.header = std::make_shared<std::vector<std::byte>>(sizeof(Record) + kSmallBytes);
    message.header_transfer = endpoint_.receive(message.header->data(), message.header->size(),
                                                call.peer, Tag::message_header, message.header);
    return;
  }
  const Record record = make_record(call);
  message.header = std::make_shared<std::vector<std::byte>>(sizeof(record) + payload);
  std::memcpy(message.header->data(), &record, sizeof(record));
  if (payload > 0) std::memcpy(message.header->data() + sizeof(record), call.in, payload);
  message.header_transfer = endpoint_.send(message.header->data(), message.header->size(),
                                           call.peer, Tag::message_header, message.header);
}

void MpiPointToPoint::read_header(MpiMessage& message) {
  const Collective& call = message.call;
  endpoint_.check(message.header_transfer, call.peer, message.since,
                  [&] { return describe(call); });
  message.header_done = true;
  const bool fits = call.bytes() <= kSmallBytes;
  if (call.op == Op::recv) {
    const auto& sent = *reinterpret_cast<const Record*>(message.header->data());
    const std::string problem =
        compare_message(sent, call.peer, make_record(call), rank_, liveness_->group());
    if (!problem.empty()) liveness_->fail(Failure::Kind::usage, -1, problem);
    if (fits && call.bytes() > 0) {
      copy_bytes(call.out, message.header->data() + sizeof(Record), call.bytes());
      meter_->copied(call.bytes());
    }
  }
  if (!fits) {
    const bool send = call.op == Op::send;
    message.transfer.emplace(send ? Transfer::Kind::send : Transfer::Kind::receive,
                             send ? call.in : call.out, call.bytes(), call.peer, Tag::message);
  }
}

bool MpiPointToPoint::move(PointToPointMessage& message) {
  auto& own = static_cast<MpiMessage&>(message);
  bool moved = false;
  if (!own.header) begin(own);
  if (!own.header_done && own.header_transfer->done()) {
    read_header(own);
    moved = true;
  }
  if (own.transfer) moved = own.transfer->advance(endpoint_) || moved;
  own.finished = own.header_done && (!own.transfer || own.transfer->finished());
  if (!moved) {
    const TransferPtr& awaited = own.header_done ? own.transfer->oldest() : own.header_transfer;
    endpoint_.check(awaited, own.call.peer, own.since, [&] { return describe(own.call); });
  }
  return moved;
}

}  // namespace tessera::comm::mpi
