#include "tessera/comm/mpi/point_to_point.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/copy.h"
#include "tessera/comm/mpi/courier.h"
#include "tessera/comm/record.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {
constexpr auto kSlice = std::chrono::milliseconds(50);
}

struct PointToPoint::Item final : WorkState {
  Item(std::shared_ptr<Core> owner, Collective what, Attachments with)
      : core(std::move(owner)), call(std::move(what)), attachments(std::move(with)) {}

  void wait() override;
  bool done() const override;

  const std::shared_ptr<Core> core;
  Collective call;
  Attachments attachments;
  Watch::Clock::time_point began{};  // when it came to the head of its line
  Watch::Clock::time_point since{};  // when it came to the head of its line, or last moved
  std::shared_ptr<std::vector<std::byte>> letter;
  Ticket letter_ticket;
  std::optional<Stream> stream;  // of data that does not fit in the letter
  bool read = false;             // the letter was sent, or has come and was compared
  bool finished = false;         // set by the thread that moves items
  bool ended = false;            // set under the lock, for those who wait
  std::exception_ptr error;
};

struct PointToPoint::Core {
  Core(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watcher,
       std::shared_ptr<TrafficMeter> traffic, int own, int ranks, int first_tag)
      : watch(std::move(watcher)),
        meter(std::move(traffic)),
        rank(own),
        courier(std::move(runtime), watch, first_tag),
        lines(2 * static_cast<std::size_t>(ranks)) {}

  const std::shared_ptr<Watch> watch;
  const std::shared_ptr<TrafficMeter> meter;
  const int rank;
  Courier courier;

  std::mutex mutex;
  std::condition_variable submitted;
  std::condition_variable advanced;
  using Line = std::deque<std::shared_ptr<Item>>;
  std::vector<Line> lines;  // to and from every rank; only the first of a line moves
  std::size_t waiting = 0;  // items in all lines
  bool stopping = false;
  std::thread thread;

  Line& line(const Collective& call) {
    return lines[2 * static_cast<std::size_t>(call.peer) + (call.op == Op::send)];
  }
  void begin(Item& item);
  void read_letter(Item& item);
  bool move(Item& item);
  bool advance(Item& item);
  bool round(std::unique_lock<std::mutex>& lock);
  void thread_loop();
};

void PointToPoint::Core::begin(Item& item) {
  const Collective& call = item.call;
  const std::size_t payload = call.bytes() <= kSmallBytes ? call.bytes() : 0;
  if (call.op == Op::recv) {
    // As much as any letter holds: what comes may not be what this call expects.
    item.letter = std::make_shared<std::vector<std::byte>>(sizeof(Record) + kSmallBytes);
    item.letter_ticket = courier.receive(item.letter->data(), item.letter->size(), call.peer,
                                         Channel::message_header, item.letter);
    return;
  }
  const Record record = make_record(call);
  item.letter = std::make_shared<std::vector<std::byte>>(sizeof(record) + payload);
  std::memcpy(item.letter->data(), &record, sizeof(record));
  if (payload > 0) std::memcpy(item.letter->data() + sizeof(record), call.in, payload);
  item.letter_ticket = courier.send(item.letter->data(), item.letter->size(), call.peer,
                                    Channel::message_header, item.letter);
}

void PointToPoint::Core::read_letter(Item& item) {
  const Collective& call = item.call;
  courier.check(item.letter_ticket, call.peer, item.since, [&] { return describe(call); });
  item.read = true;
  const bool fits = call.bytes() <= kSmallBytes;
  if (call.op == Op::recv) {
    const auto& sent = *reinterpret_cast<const Record*>(item.letter->data());
    const std::string problem =
        compare_message(sent, call.peer, make_record(call), rank, watch->group());
    if (!problem.empty()) watch->fail(Failure::Kind::usage, -1, problem);
    if (fits && call.bytes() > 0) {
      copy_bytes(call.out, item.letter->data() + sizeof(Record), call.bytes());
      meter->copied(call.bytes());
    }
  }
  if (!fits) {
    const bool send = call.op == Op::send;
    item.stream.emplace(send ? Transfer::Kind::send : Transfer::Kind::receive,
                        send ? call.in : call.out, call.bytes(), call.peer, Channel::message);
  }
}

// Returns whether anything moved.
bool PointToPoint::Core::move(Item& item) {
  bool moved = false;
  if (!item.letter) begin(item);
  if (!item.read && item.letter_ticket->done()) {
    read_letter(item);
    moved = true;
  }
  if (item.stream) moved = item.stream->advance(courier) || moved;
  item.finished = item.read && (!item.stream || item.stream->finished());
  if (!moved) {
    const Ticket& awaited = item.read ? item.stream->oldest() : item.letter_ticket;
    courier.check(awaited, item.call.peer, item.since, [&] { return describe(item.call); });
  }
  return moved;
}

bool PointToPoint::Core::advance(Item& item) {
  try {
    if (item.since == Watch::Clock::time_point{}) item.since = item.began = Watch::Clock::now();
    if (item.attachments.before) std::exchange(item.attachments.before, nullptr)();
    const bool moved = move(item);
    if (moved) item.since = Watch::Clock::now();
    if (item.finished && item.attachments.after) item.attachments.after();
    if (item.finished && item.attachments.ran) {
      item.attachments.ran(item.began, Watch::Clock::now());
    }
    return moved;
  } catch (...) {
    courier.give_up();
    item.error = std::current_exception();
    item.finished = true;
    return true;
  }
}

// Moves the first item of every line once. Called, and returns, with the lock held.
bool PointToPoint::Core::round(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Item>> first;
  for (const Line& line : lines) {
    if (!line.empty()) first.push_back(line.front());
  }
  lock.unlock();
  bool moved = false;
  for (const auto& item : first) moved = advance(*item) || moved;
  for (const auto& item : first) {
    if (item->finished) item->attachments = {};
  }
  lock.lock();
  for (const auto& item : first) {
    if (!item->finished) continue;
    item->ended = true;
    line(item->call).pop_front();
    --waiting;
  }
  if (moved) advanced.notify_all();
  return moved;
}

void PointToPoint::Core::thread_loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    submitted.wait(lock, [this] { return stopping || waiting > 0; });
    if (stopping && waiting == 0) return;
    const std::uint64_t seen = courier.bell().count();
    if (round(lock)) continue;
    lock.unlock();
    courier.bell().wait(seen, kSlice);
    lock.lock();
  }
}

void PointToPoint::Item::wait() {
  std::unique_lock lock(core->mutex);
  core->advanced.wait(lock, [this] { return ended; });
  if (error) std::rethrow_exception(error);
}

bool PointToPoint::Item::done() const {
  std::lock_guard lock(core->mutex);
  return ended;
}

PointToPoint::PointToPoint(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watch,
                           std::shared_ptr<TrafficMeter> meter, int rank, int ranks, int first_tag)
    : core_(std::make_shared<Core>(std::move(runtime), std::move(watch), std::move(meter), rank,
                                   ranks, first_tag)) {}

PointToPoint::~PointToPoint() {
  if (std::uncaught_exceptions() > 0) core_->watch->abandon();
  {
    std::lock_guard lock(core_->mutex);
    core_->stopping = true;
  }
  core_->submitted.notify_all();
  if (core_->thread.get_id() == std::this_thread::get_id()) {
    core_->thread.detach();  // [Note: own thread] in queue.cpp
  } else if (core_->thread.joinable()) {
    core_->thread.join();
  }
}

Work PointToPoint::submit(Collective call, Attachments attachments) {
  auto item = std::make_shared<Item>(core_, std::move(call), std::move(attachments));
  {
    std::lock_guard lock(core_->mutex);
    core_->line(item->call).push_back(item);
    ++core_->waiting;
    if (!core_->thread.joinable()) {
      core_->thread = std::thread([core = core_] { core->thread_loop(); });
    }
  }
  core_->submitted.notify_one();
  core_->courier.bell().ring();  // the thread may be asleep over another transfer
  return Work(std::move(item));
}

}  // namespace tessera::comm::mpi
