#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace tessera::simulator {

struct Event {
  enum Type : std::uint8_t {
    computed,     // a worker has computed a piece
    transferred,  // the last byte of a message has left the ports
    arrived,      // a message is there
    ready,        // all members of a group are ready for its next collective
    reduced,      // the last byte of a collective has left the ports
    finished,     // a collective is done
  };
  double time = 0;
  std::uint64_t order = 0;  // equal times: first come, first served, so that runs repeat
  std::uint32_t id = 0;     // worker, flow or group
  std::uint32_t version = 0;
  Type type = computed;
};

class EventQueue {
 public:
  void push(double time, Event::Type type, std::uint32_t id, std::uint32_t version = 0) {
    heap_.push({time, order_++, id, version, type});
  }
  bool empty() const { return heap_.empty(); }
  Event pop() {
    const Event event = heap_.top();
    heap_.pop();
    return event;
  }
  std::uint64_t count() const { return order_; }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
  std::uint64_t order_ = 0;
};

}  // namespace tessera::simulator
