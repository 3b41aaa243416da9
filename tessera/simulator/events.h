#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace tessera::simulator {

// Event of a simulation. Small, because a large run has tens of thousands in the queue and millions
// in total.
struct Event {
  enum Type : std::uint32_t {
    computed,     // a worker has computed a piece
    transferred,  // the last byte of a message has left the ports
    arrived,      // a message has arrived
    ready,        // all members of a group are ready for its next collective
    reduced,      // the last byte of a collective has left the ports
    finished,     // a collective is done
  };
  double time = 0;
  std::uint32_t id = 0;  // worker, flow or group
  std::uint32_t version : 29 = 0;
  std::uint32_t kind : 3 = computed;

  Type type() const { return static_cast<Type>(kind); }
  // Events of the same time are ordered too, so that runs are reproducible.
  bool later_than(const Event& other) const {
    if (time != other.time) return time > other.time;
    if (kind != other.kind) return kind > other.kind;
    return id != other.id ? id > other.id : version > other.version;
  }
};
static_assert(sizeof(Event) == 16);

// Queue of events, in the order of time.
class EventQueue {
 public:
  void push(double time, Event::Type type, std::uint32_t id, std::uint32_t version = 0) {
    ++count_;
    heap_.push({time, id, version & 0x1fffffff, type});
  }
  // Adds an event that was popped before. It is not counted again.
  void put_back(const Event& event) { heap_.push(event); }
  bool empty() const { return heap_.empty(); }
  double next() const { return heap_.top().time; }
  Event pop() {
    const Event event = heap_.top();
    heap_.pop();
    return event;
  }
  std::uint64_t count() const { return count_; }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.later_than(b); }
  };
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
  std::uint64_t count_ = 0;
};

}  // namespace tessera::simulator
