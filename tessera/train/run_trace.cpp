#include "tessera/train/run_trace.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"

namespace tessera::train {
namespace {

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double microseconds(Trace::Time::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

void Trace::begin_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  const bool kept = step > 0 && begun_ < steps_;
  begun_ += kept ? 1 : 0;
  step_ = kept ? step : 0;
}

bool Trace::keeps() const {
  const std::lock_guard lock(mutex_);
  return step_ != 0;
}

bool Trace::keeps_memory() const {
  const std::lock_guard lock(mutex_);
  return step_ != 0 && begun_ <= 2;
}

void Trace::keep(const std::string& track, Span span) {
  const std::lock_guard lock(mutex_);
  if (step_ == 0) return;
  span.track = tracks_.try_emplace(track, static_cast<int>(tracks_.size())).first->second;
  span.step = step_;
  spans_.push_back(std::move(span));
}

void Trace::span(const std::string& name, Time begin, Time end, int micro) {
  keep("compute", {.name = name, .begin = begin, .end = end, .micro = micro});
}

void Trace::span_on(const std::string& track, const std::string& name, Time begin, Time end) {
  keep(track, {.name = name, .begin = begin, .end = end});
}

void Trace::memory_over_time(const std::string& name,
                             const std::vector<memory::MemoryPoint>& points) {
  const std::lock_guard lock(mutex_);
  if (step_ == 0) return;
  for (const memory::MemoryPoint& point : points) counters_.push_back({name, step_, point});
}

void Trace::call(const std::string& axis, const comm::Collective& call, Time begin, Time end) {
  // Collectives run one after the other, as do messages between two ranks, but these overlap with
  // each other and need separate tracks.
  std::string track = axis;
  if (call.op == comm::Op::send) track += str(" to ", call.peer);
  if (call.op == comm::Op::recv) track += str(" from ", call.peer);
  keep(track, {.name = str(comm::name(call.op), " ", call.label),
               .begin = begin,
               .end = end,
               .bytes = static_cast<std::int64_t>(call.bytes())});
}

std::string Trace::events() const {
  const std::lock_guard lock(mutex_);
  if (steps_ == 0) return "";
  std::vector<std::string> lines = {str(R"({"name":"process_name","ph":"M","pid":)", rank_,
                                        R"(,"args":{"name":"rank )", rank_, R"("}})")};
  for (const auto& [name, track] : tracks_) {
    const std::string at = str(R"("ph":"M","pid":)", rank_, R"(,"tid":)", track, R"(,"args":{)");
    lines.push_back(str(R"({"name":"thread_name",)", at, R"("name":)", json_string(name), "}}"));
    lines.push_back(str(R"({"name":"thread_sort_index",)", at, R"("sort_index":)", track, "}}"));
  }
  char times[96];
  for (const Span& each : spans_) {
    std::snprintf(times, sizeof times, ",\"ts\":%.3f,\"dur\":%.3f,",
                  microseconds(each.begin.time_since_epoch()), microseconds(each.end - each.begin));
    std::string line = str(R"({"name":)", json_string(each.name), R"(,"ph":"X","pid":)", rank_,
                           R"(,"tid":)", each.track, times, R"("args":{"step":)", each.step);
    if (each.micro >= 0) line += str(R"(,"micro_batch":)", each.micro);
    if (each.bytes >= 0) line += str(R"(,"bytes":)", each.bytes);
    lines.push_back(line + "}}");
  }
  // The step is outside of "args", whose numbers viewers draw.
  for (const Counter& each : counters_) {
    std::snprintf(times, sizeof times, ",\"ts\":%.3f,",
                  microseconds(each.point.time.time_since_epoch()));
    std::string line = str(R"({"name":)", json_string(each.name), R"(,"ph":"C","pid":)", rank_,
                           R"(,"step":)", each.step, times, R"("args":{)");
    for (std::size_t i = 0; i < each.point.bytes.size(); ++i) {
      line += str(i > 0 ? "," : "", "\"", kMemoryCategoryNames[i], "\":", each.point.bytes[i]);
    }
    lines.push_back(line + "}}");
  }
  return join(lines, ",\n");
}

void CommClock::add(Time begin, Time end) {
  const std::lock_guard lock(mutex_);
  intervals_.emplace_back(begin, end);
}

double CommClock::take() {
  std::vector<std::pair<Time, Time>> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(intervals_);
  }
  std::sort(all.begin(), all.end());
  Time::duration sum{0};
  Time covered = Time::min();
  for (const auto& [begin, end] : all) {
    const Time from = std::max(begin, covered);
    if (end > from) sum += end - from;
    covered = std::max(covered, end);
  }
  return std::chrono::duration<double>(sum).count();
}

void CallListener::ran(const comm::Collective& call, Time begin, Time end) {
  clock_.add(begin, end);
  trace_.call(axis_, call, begin, end);
}

void CallListener::waited(const comm::Collective& call, Time begin, Time end) {
  clock_.add(begin, end);
  waited_ += std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
  trace_.span(str("wait: ", comm::name(call.op), " ", call.label), begin, end);
}

void write_trace(const std::string& path, const std::vector<std::string>& events_of_ranks) {
  try {
    publish(path, str("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                      join(events_of_ranks, ",\n"), "\n]}\n"));
  } catch (const Error& error) {
    throw DataError(str("--trace: ", error.what()));
  }
}

}  // namespace tessera::train
