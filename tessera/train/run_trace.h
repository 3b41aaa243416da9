#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/observer.h"
#include "tessera/memory/ledger.h"

namespace tessera::train {

// Trace for chrome://tracing and Perfetto: one process per rank, with a track for computation and
// one for the calls along each axis of the mesh. It uses the clock of the host, so that ranks of
// one host are aligned. Thread-safe.
class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Records the first `steps` steps; 0: none.
  Trace(int rank, std::int64_t steps) : rank_(rank), steps_(steps) {}

  // Starts a step. Following spans belong to it. 0: they belong to no step and are dropped.
  void begin_step(std::int64_t step);
  bool keeps() const;  // true if the current step is recorded
  // Returns true if the memory of the current step is recorded too: that of the first step, which
  // allocates the state, and of the second one. More steps look like the second.
  bool keeps_memory() const;
  // Adds a span to the track "compute". micro: index of the micro-batch; -1 if it does not apply.
  void span(const std::string& name, Time begin, Time end, int micro = -1);
  // Adds a span to the track with this name.
  void span_on(const std::string& track, const std::string& name, Time begin, Time end);
  // Adds the bytes in use over time, by category, as a counter of the current step.
  void memory_over_time(const std::string& name, const std::vector<memory::MemoryPoint>& points);
  // Adds a call to the track of its axis. Sends and receives have a track for each peer.
  void call(const std::string& axis, const comm::Collective& call, Time begin, Time end);

  // Returns the events as JSON objects, one per line and separated by commas, without brackets.
  std::string events() const;

 private:
  struct Span {
    std::string name;
    int track = 0;
    Time begin, end;
    std::int64_t step = 0;
    int micro = -1;
    std::int64_t bytes = -1;
  };
  struct Counter {
    std::string name;
    std::int64_t step = 0;
    memory::MemoryPoint point;
  };
  void keep(const std::string& track, Span span);

  const int rank_;
  const std::int64_t steps_;
  mutable std::mutex mutex_;
  std::int64_t begun_ = 0, step_ = 0;
  std::map<std::string, int> tracks_ = {{"compute", 0}};
  std::vector<Span> spans_;
  std::vector<Counter> counters_;
};

// Time in which communication was under way. Calls that overlap count once. Thread-safe.
class CommClock {
 public:
  using Time = Trace::Time;

  void add(Time begin, Time end);
  // Returns the seconds covered by the intervals since the last take(), and forgets them.
  double take();

 private:
  std::mutex mutex_;
  std::vector<std::pair<Time, Time>> intervals_;
};

// Observer of the calls along one axis. Adds them to the trace and to the clock, and the time that
// this rank waited for them to `waited`. All axes share these.
class CallListener final : public comm::Observer {
 public:
  using Waited = std::atomic<std::int64_t>;  // ns

  CallListener(std::string axis, Trace& trace, CommClock& clock, Waited& waited)
      : axis_(std::move(axis)), trace_(trace), clock_(clock), waited_(waited) {}
  void ran(const comm::Collective& call, Time begin, Time end) override;
  void waited(const comm::Collective& call, Time begin, Time end) override;

 private:
  const std::string axis_;
  Trace& trace_;
  CommClock& clock_;
  Waited& waited_;
};

// Joins the events of all ranks and publishes them: see [Note: publishing].
void write_trace(const std::string& path, const std::vector<std::string>& events_of_ranks);

}  // namespace tessera::train
