#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

// Spans of time for chrome://tracing and Perfetto: one process per rank. The clock is the machine's
// own, so ranks of one host line up.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  Trace(int rank, bool enabled) : rank_(rank), enabled_(enabled) {}

  void span(const char* name, Clock::time_point begin, Clock::time_point end, std::int64_t step);
  // The events as JSON objects, one per line with commas between; no brackets.
  std::string events() const;

 private:
  struct Span {
    const char* name;  // of static storage
    Clock::time_point begin, end;
    std::int64_t step;
  };
  int rank_;
  bool enabled_;
  std::vector<Span> spans_;
};

// Puts the events of all ranks together. The file appears at once and whole: it is written under
// another name and renamed.
void write_trace(const std::string& path, const std::vector<std::string>& events_of_ranks);

// Throws UsageError if the file could not be written at the end of the run.
void check_writable(const std::string& path, const std::string& flag);

}  // namespace tessera::train
