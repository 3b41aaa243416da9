#include "tessera/comm/shm/point_to_point.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/copy.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::shm {
namespace {
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr std::size_t kDirectBytes = 4
                                     << 20;  // of a direct message in one go, to be fair to others
}  // namespace

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
  bool begun = false;                // its header was sent or seen
  bool direct = false;               // the receiver reads where the sender's buffer lies
  std::uint32_t receipt = 0;         // direct send: the tail that says that it was read
  std::size_t moved = 0;             // bytes of the message that this side has handled
  bool finished = false;             // set by the thread that drives
  bool ended = false;                // set under the lock, for those who wait
  std::exception_ptr error;
};

struct PointToPoint::Core {
  std::shared_ptr<Segment> segment;
  Control control;
  std::shared_ptr<MemoryTable> memories;
  std::shared_ptr<Watch> watch;
  std::shared_ptr<TrafficMeter> meter;
  int rank;
  std::chrono::nanoseconds spin;

  std::mutex mutex;
  std::condition_variable submitted;
  std::condition_variable advanced;
  using Line = std::deque<std::shared_ptr<Item>>;
  std::vector<Line> lines;  // to and from every rank; only the first of a line moves
  std::size_t waiting = 0;  // items in all lines
  bool driving = false;     // the right to move items: exactly one thread has it
  std::thread::id driver;   // that one; see [Note: own thread] in queue.cpp
  bool stopping = false;
  std::thread thread;

  Core(std::shared_ptr<Segment> memory, int own, int ranks)
      : segment(std::move(memory)),
        control(segment->data(), ranks),
        rank(own),
        lines(2 * static_cast<std::size_t>(ranks)) {}

  Line& line(const Collective& call) {
    return lines[2 * static_cast<std::size_t>(call.peer) + (call.op == Op::send)];
  }
  Signal& bell() { return control.desk(rank).bell; }

  bool advance_send(Item& item);
  bool advance_receive(Item& item);
  void begin_receive(Item& item, const Header& header);
  bool advance(Item& item);
  bool round(std::unique_lock<std::mutex>& lock);
  void drive(std::unique_lock<std::mutex>& lock, const Item* until);
  void thread_loop();
};

// Puts as many packets on the channel as it takes. Returns whether anything moved.
bool PointToPoint::Core::advance_send(Item& item) {
  Channel& channel = control.channel(rank, item.call.peer);
  const std::size_t bytes = item.call.bytes();
  bool moved = false;
  if (item.direct && item.begun) {
    item.finished = reached(channel.tail.load(std::memory_order_acquire), item.receipt);
    return item.finished;
  }
  std::uint32_t head = channel.head.load(std::memory_order_relaxed);
  while (!item.finished && head - channel.tail.load(std::memory_order_acquire) < kPackets) {
    Packet& packet = channel.packets[head % kPackets];
    if (!item.begun) {
      const Collective& call = item.call;
      packet.header = Header{make_record(call), {}, {}};
      if (bytes > kPacketBytes) packet.header.in = memories->address(call.in, bytes);
      item.begun = true;
      item.direct = packet.header.in.memory != 0;
      item.receipt = head + 1;
    }
    const std::size_t part = item.direct ? 0 : std::min(kPacketBytes, bytes - item.moved);
    if (part > 0) {
      copy_bytes(packet.payload, static_cast<const std::byte*>(item.call.in) + item.moved, part);
      meter->copied(part);
    }
    item.moved += part;
    channel.head.store(++head, std::memory_order_release);
    control.desk(item.call.peer).bell.ring();
    moved = true;
    if (item.direct) break;
    item.finished = item.moved == bytes;
  }
  return moved;
}

void PointToPoint::Core::begin_receive(Item& item, const Header& header) {
  item.begun = true;
  item.direct = header.in.memory != 0;
  const std::string problem =
      compare_message(header.record, item.call.peer, make_record(item.call), rank, watch->group());
  if (!problem.empty()) watch->fail(Failure::Kind::usage, -1, problem);
}

bool PointToPoint::Core::advance_receive(Item& item) {
  Channel& channel = control.channel(item.call.peer, rank);
  const std::size_t bytes = item.call.bytes();
  auto* out = static_cast<std::byte*>(item.call.out);
  bool moved = false;
  std::uint32_t tail = channel.tail.load(std::memory_order_relaxed);
  while (!item.finished && channel.head.load(std::memory_order_acquire) != tail) {
    const Packet& packet = channel.packets[tail % kPackets];
    if (!item.begun) begin_receive(item, packet.header);
    const std::size_t most = item.direct ? kDirectBytes : kPacketBytes;
    const std::size_t part = std::min(most, bytes - item.moved);
    const std::byte* from = packet.payload;
    if (item.direct) {
      from = memories->resolve(packet.header.in, item.call.peer);
      if (from == nullptr) {
        watch->fail(Failure::Kind::usage, watch->members()[static_cast<std::size_t>(rank)],
                    str(describe(item.call), ": rank ", rank,
                        " has released the symmetric memory that rank ", item.call.peer,
                        " sends from; keep it until all ranks are done with it"));
      }
      from += item.moved;
    }
    if (part > 0) {
      copy_bytes(out + item.moved, from, part);
      meter->copied(part);
    }
    item.moved += part;
    item.finished = item.moved == bytes;
    moved = true;
    if (item.direct && !item.finished)
      break;  // let others move too; the packet stays until the end
    channel.tail.store(++tail, std::memory_order_release);
    control.desk(item.call.peer).bell.ring();
  }
  return moved;
}

bool PointToPoint::Core::advance(Item& item) {
  try {
    if (item.since == Watch::Clock::time_point{}) item.since = item.began = Watch::Clock::now();
    if (item.attachments.before) std::exchange(item.attachments.before, nullptr)();
    const bool moved = item.call.op == Op::send ? advance_send(item) : advance_receive(item);
    if (item.finished && item.attachments.after) item.attachments.after();
    if (item.finished && item.attachments.ran) {
      item.attachments.ran(item.began, Watch::Clock::now());
    }
    if (!moved) {
      watch->check(
          item.call.peer, item.since, [&] { return describe(item.call); }, [&] { return false; });
    } else {
      item.since = Watch::Clock::now();
    }
    return moved;
  } catch (...) {
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

// Moves items until `until` has ended, or, if it is null, until there are none. The lock is held on
// entry and on return; nobody else drives.
void PointToPoint::Core::drive(std::unique_lock<std::mutex>& lock, const Item* until) {
  driving = true;
  driver = std::this_thread::get_id();
  while (until != nullptr ? !until->ended : waiting > 0) {
    const std::uint32_t seen = bell().value.load(std::memory_order_acquire);
    if (round(lock)) continue;
    lock.unlock();
    if (!bell().spin(seen + 1, spin)) bell().sleep(seen, kSlice);
    lock.lock();
  }
  driving = false;
  if (stopping || waiting > 0) submitted.notify_one();
  advanced.notify_all();
}

void PointToPoint::Core::thread_loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    submitted.wait(lock, [this] { return !driving && (stopping || waiting > 0); });
    if (waiting == 0) return;
    drive(lock, nullptr);
  }
}

void PointToPoint::Item::wait() {
  std::unique_lock lock(core->mutex);
  while (!ended) {
    if (!core->driving) {
      core->drive(lock, this);
    } else {
      core->advanced.wait(lock);
    }
  }
  if (error) std::rethrow_exception(error);
}

bool PointToPoint::Item::done() const {
  std::lock_guard lock(core->mutex);
  return ended;
}

PointToPoint::PointToPoint(std::shared_ptr<Segment> segment, std::shared_ptr<MemoryTable> memories,
                           std::shared_ptr<Watch> watch, std::shared_ptr<TrafficMeter> meter,
                           int rank, int ranks, std::chrono::nanoseconds spin)
    : core_(std::make_shared<Core>(std::move(segment), rank, ranks)) {
  core_->memories = std::move(memories);
  core_->watch = std::move(watch);
  core_->meter = std::move(meter);
  core_->spin = spin;
}

PointToPoint::~PointToPoint() {
  if (std::uncaught_exceptions() > 0) core_->watch->abandon();
  std::unique_lock lock(core_->mutex);
  if (core_->driving && core_->driver == std::this_thread::get_id()) {
    core_->stopping = true;
    if (core_->thread.joinable()) core_->thread.detach();
    return;
  }
  while (core_->driving || core_->waiting > 0) {
    if (core_->driving) {
      core_->advanced.wait(lock);
    } else {
      core_->drive(lock, nullptr);
    }
  }
  core_->stopping = true;
  core_->submitted.notify_all();
  lock.unlock();
  if (core_->thread.joinable()) core_->thread.join();
}

Work PointToPoint::submit(Collective call, Attachments attachments) {
  const std::shared_ptr<Core> core = core_;  // *this may go in round()
  auto item = std::make_shared<Item>(core, std::move(call), std::move(attachments));
  std::unique_lock lock(core->mutex);
  core->line(item->call).push_back(item);
  ++core->waiting;
  if (core->driving) {
    core->bell().ring();  // whoever drives may be asleep
    return Work(std::move(item));
  }
  core->driving = true;
  core->driver = std::this_thread::get_id();
  core->round(lock);
  core->driving = false;
  core->advanced.notify_all();
  if (core->waiting > 0 && !core->thread.joinable()) {
    core->thread = std::thread([core] { core->thread_loop(); });
    if (core->stopping) core->thread.detach();
  }
  if (core->stopping || core->waiting > 0) core->submitted.notify_one();
  return Work(std::move(item));
}

}  // namespace tessera::comm::shm
