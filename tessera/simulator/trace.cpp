#include "tessera/simulator/trace.h"

#include <cstdio>
#include <set>

#include "tessera/core/text.h"

namespace tessera::simulator {
namespace {

std::string metadata(const char* name, int pid, int tid, const std::string& value) {
  return str(R"({"name":")", name, R"(","ph":"M","pid":)", pid, R"(,"tid":)", tid,
             R"(,"args":{"name":")", value, "\"}}");
}

}  // namespace

std::string trace_json(const Scenario& scenario, const Result& result) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto add = [&](const std::string& event) {
    out += separator;
    out += event;
    separator = ",\n";
  };
  std::set<int> shown;
  char line[256];
  for (const Span& span : result.spans) {
    const int p = span.worker / result.replicas, d = span.worker % result.replicas;
    const int rank = scenario.rank(p, d);
    if (shown.insert(rank).second) {
      add(metadata("process_name", rank, 0,
                   str("rank ", rank, ": pipeline rank ", p, ", replica ", d)));
      const int lanes = scenario.replicas() > 1 ? 4 : 3;
      for (int lane = 0; lane < lanes; ++lane) {
        add(metadata("thread_name", rank, lane, Span::kLaneNames[lane]));
      }
    }
    std::snprintf(line, sizeof line,
                  "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
                  span.what, rank, static_cast<int>(span.lane), span.begin * 1e6,
                  (span.end - span.begin) * 1e6);
    std::string event = line;
    if (span.micro >= 0) {
      event += str(R"(,"args":{"micro":)", span.micro, R"(,"chunk":)", span.chunk, "}");
    }
    add(event + "}");
  }
  return out + "\n]}\n";
}

}  // namespace tessera::simulator
