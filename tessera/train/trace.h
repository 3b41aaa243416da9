#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/observer.h"

namespace tessera::train {

// Spans of time for chrome://tracing and Perfetto: one process per rank, with a track for what it
// computes and one for the calls along each axis of the mesh. The clock is the machine's own, so
// ranks of one host line up. From any thread.
class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Keeps the first `steps` steps it is told of; 0: nothing.
  Trace(int rank, std::int64_t steps) : rank_(rank), steps_(steps) {}

  // What comes now belongs to this step; 0: to none, and is not kept.
  void begin_step(std::int64_t step);
  bool keeps() const;  // what comes now
  // Of the track "compute". micro: which micro-batch, -1 if that does not apply.
  void span(const std::string& name, Time begin, Time end, int micro = -1);
  // Of a track by its name.
  void span_on(const std::string& track, const std::string& name, Time begin, Time end);
  // Of the track of an axis; sends and receives have one for each peer.
  void call(const std::string& axis, const comm::Collective& call, Time begin, Time end);

  // The events as JSON objects, one per line with commas between; no brackets.
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
  void keep(const std::string& track, Span span);

  const int rank_;
  const std::int64_t steps_;
  mutable std::mutex mutex_;
  std::int64_t begun_ = 0, step_ = 0;
  std::map<std::string, int> tracks_ = {{"compute", 0}};
  std::vector<Span> spans_;
};

// Listens to the calls along one axis: they go into the trace, and what they held this rank up adds
// up for all axes together.
class CallListener final : public comm::Observer {
 public:
  using Waited = std::atomic<std::int64_t>;  // ns

  CallListener(std::string axis, Trace& trace, Waited& waited)
      : axis_(std::move(axis)), trace_(trace), waited_(waited) {}
  void ran(const comm::Collective& call, Time begin, Time end) override;
  void waited(const comm::Collective& call, Time begin, Time end) override;

 private:
  const std::string axis_;
  Trace& trace_;
  Waited& waited_;
};

// Puts the events of all ranks together, and publishes them: see [Note: publishing].
void write_trace(const std::string& path, const std::vector<std::string>& events_of_ranks);

}  // namespace tessera::train
